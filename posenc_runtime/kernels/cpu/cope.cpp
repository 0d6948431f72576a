// Paged attention with contextual positions (CoPE). The Python side is attention.py.

#include "paged.h"

namespace posenc {

struct Cope {
  const float* pos_emb;  // [head_dim][width], zeros from npos on
  int64_t npos, width;   // width is a multiple of 32
  float qe_scale;
  int64_t* counts;  // keys visited with gates, keys visited past saturation
};

// For each of 32 keys, the sum of a row's gates from this key to the newest one. Only the first `visible` keys have a
// gate. Four parts are summed side by side, because each addition waits for the one before it.
inline void sum_gates(const float* scores, int64_t visible, double* sums) {
  constexpr int kPart = kTile / 4;
  float gates[kTile];
  for (int j = 0; j < kTile; ++j) gates[j] = -scores[j];
  exponential(gates, gates);
  for (int j = 0; j < kTile; ++j) gates[j] = j < visible ? 1.0f / (1.0f + gates[j]) : 0.0f;
  double part[4] = {};
  for (int j = kPart - 1; j >= 0; --j)
    for (int i = 0; i < 4; ++i) sums[i * kPart + j] = part[i] += gates[i * kPart + j];
  for (int i = 2; i >= 0; --i)
    for (int j = 0; j < kPart; ++j) sums[i * kPart + j] += sums[(i + 1) * kPart];
}

// How many of 32 keys, the first of which is `key`, a row at `position` may read.
inline int64_t visible_keys(int64_t key, int64_t end, int64_t position) {
  return std::max<int64_t>(0, std::min<int64_t>(kTile, std::min(end - key, position - key + 1)));
}

// The state of a task's rows: their logits of all positions, and the sums of newer keys' gates. These sums are float64:
// between 1,024 and 2,048 float32 rounds each of thousands of additions by up to 2^-14. Decision 33.
class Walk {
 public:
  template <typename T>
  Walk(const Paged& paged, const Cope& cope, const Reader<T>& reader)
      : cope_(cope), table_(reader.rows * cope.width), carries_(reader.rows, 0.0) {
    // The queries are already multiplied by the scale of scores, but the table has its own scale.
    product(reader.queries.data(), paged.head_dim, cope.pos_emb, cope.width, table_.data(), cope.width, reader.rows,
            paged.head_dim, cope.width, false);
    const float scale = cope.qe_scale / paged.scale;
    for (float& logit : table_) logit *= scale;
  }

  std::vector<double>& carries() { return carries_; }

  bool saturated() const {
    return *std::min_element(carries_.begin(), carries_.end()) >= static_cast<double>(cope_.npos - 1);
  }

  // Adds to each of a row's scores the logit of its key's position. The newest key is the last visible one.
  void add_positions(int64_t row, int64_t visible, float* scores) {
    const float* table = table_.data() + row * cope_.width;
    const double furthest = static_cast<double>(cope_.npos - 1);
    if (carries_[row] >= furthest) {
      for (int j = 0; j < kTile; ++j) scores[j] += table[cope_.npos - 1];
    } else {
      double sums[kTile];
      float weights[kTile];
      int32_t below[kTile];
      sum_gates(scores, visible, sums);
      const double carry = carries_[row];
      carries_[row] += sums[0];
      const double last = static_cast<double>(cope_.npos - 2);
#pragma omp simd
      for (int j = 0; j < kTile; ++j) {
        // These comparisons keep the index in the table even if a query or key is NaN.
        const double position = carry + sums[j], at = position < furthest ? position : furthest;
        const double floor = std::floor(at), index = floor < last ? floor : last;
        below[j] = static_cast<int32_t>(index);
        weights[j] = static_cast<float>(at - index);
      }
      for (int j = 0; j < kTile; ++j)
        scores[j] += table[below[j]] * (1.0f - weights[j]) + table[below[j] + 1] * weights[j];
    }
    for (int64_t j = visible; j < kTile; ++j) scores[j] = -INFINITY;
  }

 private:
  const Cope& cope_;
  Numbers<float> table_;
  std::vector<double> carries_;
};

// The results of the first pass over a part of the keys: the scores, [rows][width], and each row's sum of gates.
struct Gated {
  int64_t width = 0;
  Numbers<float> scores;
  std::vector<double> sums;
};

template <typename T>
Gated gate(const Paged& paged, const Task& task) {
  Reader<T> reader(paged, task);
  const int64_t width = last_tile(task.end_key) + kTile - task.first_key;
  Gated gated{width, Numbers<float>(reader.rows * width), std::vector<double>(reader.rows, 0.0)};
  for (int64_t key = last_tile(task.end_key); key >= task.first_key;) {
    const int64_t first = reader.span(key);
    float* scores = gated.scores.data() + first - task.first_key;
    reader.scores(first, key + kTile - first, scores, width);
    for (; key >= first; key -= kTile) {
      for (int64_t r = 0; r < reader.rows; ++r) {
        double sums[kTile];
        const int64_t visible = visible_keys(key, task.end_key, reader.position(r));
        sum_gates(scores + r * width + key - first, visible, sums);
        gated.sums[r] += sums[0];
      }
    }
  }
  return gated;
}

// Attends to a task's keys, newest first. `own` holds their scores if the first pass computed them, and is overwritten.
// `newer` are the parts with newer keys, oldest first.
template <typename T>
Softmax attend(const Paged& paged, const Cope& cope, const Task& task, Gated* own, const Gated* newer,
               int64_t num_newer) {
  Reader<T> reader(paged, task);
  Walk walk(paged, cope, reader);
  for (int64_t part = num_newer - 1; part >= 0; --part)
    for (int64_t r = 0; r < reader.rows; ++r) walk.carries()[r] += newer[part].sums[r];
  Softmax softmax(reader.rows, paged.head_dim);
  Numbers<float> scores(own ? 0 : reader.rows * kSpan);
  const int64_t stride = own ? own->width : kSpan;
  int64_t counts[2] = {0, 0};
  for (int64_t key = last_tile(task.end_key); key >= task.first_key;) {
    const int64_t first = reader.span(key), width = key + kTile - first;
    float* span = own ? own->scores.data() + first - task.first_key : scores.data();
    if (!own) reader.scores(first, width, span, stride);
    for (; key >= first; key -= kTile) {
      counts[walk.saturated()] += std::min<int64_t>(kTile, task.end_key - key);
      for (int64_t r = 0; r < reader.rows; ++r)
        walk.add_positions(r, visible_keys(key, task.end_key, reader.position(r)), span + r * stride + key - first);
    }
    softmax.weigh(span, stride, width);
    softmax.add(span, stride, reader.values(first), std::min(width, task.end_key - first));
  }
  if (cope.counts) {
#pragma omp atomic
    cope.counts[0] += counts[0];
#pragma omp atomic
    cope.counts[1] += counts[1];
  }
  return softmax;
}

template <typename T>
void attend_all(const Paged& paged, const Cope& cope) {
  int64_t num_partials;
  const std::vector<Task> tasks = tasks_of(paged, &num_partials);
  std::vector<Gated> gated(num_partials);
  std::vector<Softmax> partials(num_partials, Softmax(0, paged.head_dim));
  if (num_partials) {
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < tasks.size(); ++i)
      if (tasks[i].partial >= 0) gated[tasks[i].partial] = gate<T>(paged, tasks[i]);
  }
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].partial < 0) {
      attend<T>(paged, cope, tasks[i], nullptr, nullptr, 0).template write<T>(paged, tasks[i]);
      continue;
    }
    int64_t newer = 0;
    while (i + newer + 1 < tasks.size() && tasks[i + newer + 1].partial >= 0 && tasks[i + newer + 1].first_key > 0)
      ++newer;
    Gated* own = &gated[tasks[i].partial];
    partials[tasks[i].partial] = attend<T>(paged, cope, tasks[i], own, own + 1, newer);
  }
  if (num_partials) write_merged<T>(paged, tasks, partials);
}

}  // namespace posenc

extern "C" void posenc_cope_attention(const posenc::Paged* paged, const posenc::Cope* cope, int32_t dtype) {
  switch (dtype) {
    case 0:
      return posenc::attend_all<float>(*paged, *cope);
    case 1:
      return posenc::attend_all<posenc::BFloat16>(*paged, *cope);
    default:
      return posenc::attend_all<posenc::Half>(*paged, *cope);
  }
}
