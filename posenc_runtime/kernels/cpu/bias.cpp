// Paged attention with a distance bias, with and without a window. The Python side is attention.py.

#include "paged.h"

namespace posenc {

// b(h, d): -slopes[h] d, or table[h][min(d, table_length - 1)], or nothing.
struct Bias {
  const float* slopes;
  const float* table;
  int64_t table_length;
  const float* key_norms;  // null: no window
  int64_t* counts;
  float tolerance;
  float rounding;
};

inline float bias_at(const Bias& bias, int64_t head, int64_t distance) {
  if (bias.slopes) return -bias.slopes[head] * static_cast<float>(distance);
  if (bias.table) return bias.table[head * bias.table_length + std::min(distance, bias.table_length - 1)];
  return 0.0f;
}

// Adds the bias to a row's scores with 32 keys, the first of which is `key`. Masks keys from `end` on and those after
// `position`.
inline void add_bias(const Bias& bias, int64_t head, int64_t position, int64_t key, int64_t end, float* scores) {
  const int64_t newest = position - key;  // distance of the first key; each later key is one closer
  const int64_t visible = std::min<int64_t>(kTile, std::min(end - key, newest + 1));
  if (bias.slopes) {
    const float slope = -bias.slopes[head], first = static_cast<float>(newest);
#pragma omp simd
    for (int j = 0; j < kTile; ++j) scores[j] += slope * (first - static_cast<float>(j));
  } else if (bias.table && newest < bias.table_length) {
    const float* table = bias.table + head * bias.table_length + newest;
    for (int64_t j = 0; j < visible; ++j) scores[j] += table[-j];
  } else if (bias.table && newest - kTile >= bias.table_length - 1) {
    const float last = bias_at(bias, head, bias.table_length - 1);
#pragma omp simd
    for (int j = 0; j < kTile; ++j) scores[j] += last;
  } else if (bias.table) {
    for (int64_t j = 0; j < visible; ++j) scores[j] += bias_at(bias, head, newest - j);
  }
  for (int64_t j = std::max<int64_t>(visible, 0); j < kTile; ++j) scores[j] = -INFINITY;
}

// Decides which tiles of keys a task has to read, by the bound that window.py explains.
class Needed {
 public:
  template <typename T>
  Needed(const Paged& paged, const Bias& bias, const Reader<T>& reader) : paged_(paged), bias_(bias) {
    if (!bias.key_norms) return;
    for (int64_t r = 0; r < reader.rows; ++r) {
      const float* q = reader.queries.data() + r * paged.head_dim;
      float square = 0.0f;
#pragma omp simd reduction(+ : square)
      for (int64_t d = 0; d < paged.head_dim; ++d) square += q[d] * q[d];
      norms_.push_back(std::sqrt(square));
      const int64_t position = reader.position(r);
      const float least = std::log(static_cast<float>(position + 1) / bias.tolerance) + bias.rounding;
      floors_.push_back(reader.score(r, position) + bias_at(bias, reader.head(r), 0) - least);
    }
  }

  template <typename T>
  bool operator()(const Reader<T>& reader, int64_t kv_head, int64_t key, int64_t num_keys) const {
    if (!bias_.key_norms) return true;
    const int64_t newest = key + num_keys - 1;
    const float largest = bias_.key_norms[(reader.block(key) * paged_.num_kv_heads + kv_head) * paged_.block_size +
                                          newest % paged_.block_size];
    for (int64_t r = 0; r < reader.rows; ++r) {
      const int64_t position = reader.position(r);
      if (key > position) continue;
      const float bound = norms_[r] * largest + bias_at(bias_, reader.head(r), std::max<int64_t>(0, position - newest));
      if (!(bound < floors_[r])) return true;  // a NaN bound counts as needed
    }
    return false;
  }

 private:
  const Paged& paged_;
  const Bias& bias_;
  Numbers<float> norms_, floors_;
};

template <typename T>
Softmax attend(const Paged& paged, const Bias& bias, const Task& task) {
  Reader<T> reader(paged, task);
  Softmax softmax(reader.rows, paged.head_dim);
  const Needed needed(paged, bias, reader);
  Numbers<float> scores(reader.rows * kSpan);
  int64_t counts[2] = {0, 0};  // blocks read, blocks skipped
  int64_t counted = -1;        // the last block that was read
  const auto wanted = [&](int64_t key) {
    return needed(reader, task.kv_head, key, std::min<int64_t>(kTile, task.end_key - key));
  };
  for (int64_t key = last_tile(task.end_key); key >= task.first_key;) {
    if (!wanted(key)) {
      key -= kTile;
      continue;
    }
    if (key / paged.block_size != counted) {
      counted = key / paged.block_size;
      ++counts[0];
    }
    const int64_t first = reader.span(key, wanted), width = key + kTile - first;
    reader.scores(first, width, scores.data(), kSpan);
    for (int64_t r = 0; r < reader.rows; ++r)
      for (int64_t tile = 0; tile < width; tile += kTile)
        add_bias(bias, reader.head(r), reader.position(r), first + tile, task.end_key, &scores[r * kSpan + tile]);
    softmax.weigh(scores.data(), kSpan, width);
    softmax.add(scores.data(), kSpan, reader.values(first), std::min(width, task.end_key - first));
    key = first - kTile;
  }
  if (bias.counts) {
    const int64_t blocks = (task.end_key - 1) / paged.block_size - task.first_key / paged.block_size + 1;
#pragma omp atomic
    bias.counts[0] += counts[0];
#pragma omp atomic
    bias.counts[1] += blocks - counts[0];
  }
  return softmax;
}

template <typename T>
void attend_all(const Paged& paged, const Bias& bias) {
  int64_t num_partials;
  const std::vector<Task> tasks = tasks_of(paged, &num_partials);
  std::vector<Softmax> partials(num_partials, Softmax(0, paged.head_dim));
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < tasks.size(); ++i) {
    Softmax softmax = attend<T>(paged, bias, tasks[i]);
    if (tasks[i].partial < 0) {
      softmax.write<T>(paged, tasks[i]);
    } else {
      partials[tasks[i].partial] = std::move(softmax);
    }
  }
  if (num_partials) write_merged<T>(paged, tasks, partials);
}

}  // namespace posenc

extern "C" void posenc_bias_attention(const posenc::Paged* paged, const posenc::Bias* bias, int32_t dtype) {
  switch (dtype) {
    case 0:
      return posenc::attend_all<float>(*paged, *bias);
    case 1:
      return posenc::attend_all<posenc::BFloat16>(*paged, *bias);
    default:
      return posenc::attend_all<posenc::Half>(*paged, *bias);
  }
}
