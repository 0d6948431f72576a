// The arguments of a call, and how it is divided into tasks. layout.py has the same structures in Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tile.h"

namespace posenc {

constexpr int64_t kTaskRows = 32;    // rows (query, head of the group) of a task; a task has at least one query
constexpr int64_t kSpan = 4 * kTile;  // the most keys, adjacent in a block, that are read together
constexpr int64_t kChunkKeys = 1024;  // keys of a task, if all queries of a request fit into one task

// The cache of a layer is [num_blocks][num_kv_heads][2][block_size * head_dim]: first the keys, [head_dim][block_size],
// so that the scores of 32 keys are sums of vectors, then the values, [block_size][head_dim]. Decision 41.
struct Paged {
  const void* query;
  void* out;
  void* cache;
  const int32_t* block_table;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  int64_t query_stride_token, query_stride_head;
  int64_t out_stride_token, out_stride_head;
  int64_t cache_stride_block, cache_stride_head;
  int64_t table_stride;
  int64_t num_requests, num_heads, num_kv_heads, head_dim, block_size;
  float scale;
};

// Some queries of a request, and all or some keys of one KV head. Decision 43.
struct Task {
  int64_t request, kv_head;
  int64_t first_query, num_queries;  // among the request's queries
  int64_t first_key, end_key;
  int64_t partial;  // -1 if the task has all keys, or the index of its sums; a tile of queries has adjacent ones
};

// The tasks of a call, of at most `rows` rows or one query. A request is divided by its own lengths only, so its sums do
// not depend on other requests.
inline std::vector<Task> tasks_of(const Paged& paged, int64_t* num_partials, int64_t rows = kTaskRows) {
  const int64_t group = paged.num_heads / paged.num_kv_heads;
  const int64_t tile_queries = std::max<int64_t>(1, rows / group);
  std::vector<Task> tasks;
  *num_partials = 0;
  for (int64_t request = 0; request < paged.num_requests; ++request) {
    const int64_t queries = paged.query_start_loc[request + 1] - paged.query_start_loc[request];
    const int64_t length = paged.seq_lens[request];
    for (int64_t kv_head = 0; kv_head < paged.num_kv_heads; ++kv_head) {
      for (int64_t first = 0; first < queries; first += tile_queries) {
        const int64_t some = std::min(tile_queries, queries - first);
        const int64_t end = length - queries + first + some;
        if (queries > tile_queries || end <= kChunkKeys) {
          tasks.push_back({request, kv_head, first, some, 0, end, -1});
          continue;
        }
        for (int64_t key = 0; key < end; key += kChunkKeys)
          tasks.push_back({request, kv_head, first, some, key, std::min(end, key + kChunkKeys), (*num_partials)++});
      }
    }
  }
  return tasks;
}

// The softmax of a task's rows, tile by tile (Milakov and Gimelshein 2018, arXiv:1805.02867).
class Softmax {
 public:
  // `padded`: rows that sums() has place for.
  Softmax(int64_t rows, int64_t head_dim, int64_t padded = 0)
      : rows_(rows),
        head_dim_(head_dim),
        largest_(rows, -INFINITY),
        totals_(rows * kLanes, 0.0f),
        sums_(std::max(rows, padded) * head_dim, 0.0f) {}

  // Turns the logits of a span into weights. Masked keys have a logit of -inf. `row(r)` is a row: see InPlace.
  template <typename Row>
  void weigh(int64_t width, Row row) {
    for (int64_t r = 0; r < rows_; ++r) {
      const auto of_row = row(r);
      Lanes most = of_row.logits(0);
      for (int64_t k = kLanes; k < width; k += kLanes) {
        const Lanes some = of_row.logits(k);
        most = most < some ? some : most;
      }
      if (any_above(most * of_row.factor(), largest_[r])) {
        const float largest = largest_of(most) * of_row.factor();
        rescale(r, largest_[r] == -INFINITY ? 0.0f : std::exp(largest_[r] - largest));
        largest_[r] = largest;
      }
      Lanes total = load(&totals_[r * kLanes]);
      if (largest_[r] == -INFINITY) {
        // All keys are masked, or the logits of the others are NaN, which a maximum ignores. Then the row becomes NaN.
        for (int64_t k = 0; k < width; k += kLanes) {
          const Lanes logits = of_row.logits(k);
          for (int lane = 0; lane < kLanes; ++lane)
            if (std::isnan(logits[lane])) total += NAN;
          of_row.keep(k, Lanes{});
        }
      } else {
        const float largest = largest_[r];
        for (int64_t k = 0; k < width; k += kLanes)
          total += of_row.keep(k, of_row.exponential(of_row.logits(k), largest));
      }
      store(total, &totals_[r * kLanes]);
    }
  }

  // The same in place.
  void weigh(float* logits, int64_t stride, int64_t width) {
    weigh(width, [=](int64_t r) { return InPlace{logits + r * stride}; });
  }

  // A row of a span, in which weights take the place of logits.
  struct InPlace {
    float* row;
    // From a column on.
    Lanes logits(int64_t column) const { return load(row + column); }
    // Logits are multiplied by it before anything else.
    float factor() const { return 1.0f; }
    static Lanes exponential(Lanes logits, float largest) { return posenc::exponential(logits - largest); }
    // Keeps weights, and returns them as they will be multiplied with values.
    Lanes keep(int64_t column, Lanes weights) const {
      store(weights, row + column);
      return weights;
    }
  };

  template <typename T>
  void add(const float* weights, int64_t stride, const T* values, int64_t num_keys) {
    product(weights, stride, values, head_dim_, sums_.data(), head_dim_, rows_, num_keys, head_dim_, true);
  }

  // The weighted values of each row, [rows][head_dim].
  float* sums() { return sums_.data(); }

  // Adds to a row's sum a logit that has no value.
  void include(int64_t r, float logit) {
    if (logit > largest_[r]) {
      rescale(r, largest_[r] == -INFINITY ? 0.0f : std::exp(largest_[r] - logit));
      largest_[r] = logit;
    }
    totals_[r * kLanes] += std::exp(logit - largest_[r]);
  }

  // Multiplies the values that have been added.
  void multiply_values(float factor) {
    for (float& sum : sums_) sum *= factor;
  }

  // Merges the softmax of the same rows over other keys.
  void merge(const Softmax& other) {
    for (int64_t r = 0; r < rows_; ++r) {
      if (other.largest_[r] == -INFINITY && !std::isnan(other.total(r))) continue;
      if (other.largest_[r] > largest_[r]) {
        rescale(r, largest_[r] == -INFINITY ? 0.0f : std::exp(largest_[r] - other.largest_[r]));
        largest_[r] = other.largest_[r];
      }
      const float weight = std::exp(other.largest_[r] - largest_[r]);
      for (int64_t j = r * kLanes; j < (r + 1) * kLanes; ++j) totals_[j] += weight * other.totals_[j];
      for (int64_t d = 0; d < head_dim_; ++d) sums_[r * head_dim_ + d] += weight * other.sums_[r * head_dim_ + d];
    }
  }

  template <typename T>
  void write(const Paged& paged, const Task& task) const {
    const int64_t group = paged.num_heads / paged.num_kv_heads;
    const int64_t token = paged.query_start_loc[task.request] + task.first_query;
    for (int64_t r = 0; r < rows_; ++r) {
      T* out = static_cast<T*>(paged.out) + (token + r / group) * paged.out_stride_token +
               (task.kv_head * group + r % group) * paged.out_stride_head;
      const float inverse = 1.0f / total(r);
      for (int64_t d = 0; d < head_dim_; ++d) store(sums_[r * head_dim_ + d] * inverse, out + d);
    }
  }

 private:
  // A row's sum of weights. Each lane has the sum of its own keys until here: to add the lanes takes as long as to weigh
  // some dozen keys.
  float total(int64_t r) const {
    float sum = 0.0f;
    for (int64_t j = r * kLanes; j < (r + 1) * kLanes; ++j) sum += totals_[j];
    return sum;
  }

  void rescale(int64_t r, float factor) {
    for (int64_t j = r * kLanes; j < (r + 1) * kLanes; ++j) totals_[j] *= factor;
    float* sums = sums_.data() + r * head_dim_;
#pragma omp simd
    for (int64_t d = 0; d < head_dim_; ++d) sums[d] *= factor;
  }

  int64_t rows_, head_dim_;
  Numbers<float> largest_, totals_, sums_;  // totals_ is [rows][kLanes]
};

// Reads a task's queries, keys and values. T is the cache's data type, and Q that of queries.
template <typename T, typename Q = T>
class Reader {
 public:
  Reader(const Paged& paged, const Task& task) : Reader(paged, task, paged.scale) {}

  // Queries are multiplied by `scale`.
  Reader(const Paged& paged, const Task& task, float scale)
      : paged_(paged),
        group(paged.num_heads / paged.num_kv_heads),
        rows(task.num_queries * group),
        first_position(paged.seq_lens[task.request] -
                       (paged.query_start_loc[task.request + 1] - paged.query_start_loc[task.request]) +
                       task.first_query),
        queries(rows * paged.head_dim),
        kv_head_(task.kv_head),
        first_key_(task.first_key),
        blocks_(paged.block_table + task.request * paged.table_stride) {
    const int64_t token = paged.query_start_loc[task.request] + task.first_query;
    for (int64_t r = 0; r < rows; ++r) {
      const Q* from = static_cast<const Q*>(paged.query) + (token + r / group) * paged.query_stride_token +
                      (task.kv_head * group + r % group) * paged.query_stride_head;
      for (int64_t d = 0; d < paged.head_dim; ++d) queries[r * paged.head_dim + d] = to_float(from[d]) * scale;
    }
  }

  int64_t position(int64_t row) const { return first_position + row / group; }
  int64_t head(int64_t row) const { return kv_head_ * group + row % group; }
  int64_t block(int64_t key) const { return blocks_[key / paged_.block_size]; }

  // The first key of the span whose newest tile begins at `key`. A span has adjacent tiles of one block, all wanted.
  // Where spans begin does not depend on where a task ends, so a query's sums do not depend on the other queries of its
  // task. Decision 42.
  template <typename Wanted>
  int64_t span(int64_t key, Wanted wanted) const {
    const int64_t least = std::max(first_key_, key - key % paged_.block_size % kSpan);
    while (key > least && wanted(key - kTile)) key -= kTile;
    return key;
  }
  int64_t span(int64_t key) const {
    return span(key, [](int64_t) { return true; });
  }

  // The scores of all rows with the keys of a span, [rows][stride]. Scores past the request's last key are undefined.
  void scores(int64_t key, int64_t num_keys, float* out, int64_t stride) const {
    product(queries.data(), paged_.head_dim, keys(key), paged_.block_size, out, stride, rows, paged_.head_dim, num_keys,
            false);
  }

  // The keys of the block in which a key lies, of this task's head; values come after them.
  const T* head_of(int64_t key) const {
    return static_cast<const T*>(paged_.cache) + block(key) * paged_.cache_stride_block +
           kv_head_ * paged_.cache_stride_head;
  }

  // From a key on: a column of the block's keys, and the rows of its values.
  const T* keys(int64_t key) const { return head_of(key) + key % paged_.block_size; }
  const T* values(int64_t key) const {
    return head_of(key) + (paged_.block_size + key % paged_.block_size) * paged_.head_dim;
  }

  // The score of a row with one key.
  float score(int64_t row, int64_t key) const {
    const T* column = keys(key);
    const float* q = queries.data() + row * paged_.head_dim;
    float sum = 0.0f;
    for (int64_t d = 0; d < paged_.head_dim; ++d) sum += q[d] * to_float(column[d * paged_.block_size]);
    return sum;
  }

 private:
  const Paged& paged_;

 public:
  const int64_t group, rows;
  const int64_t first_position;
  Numbers<float> queries;  // [rows][head_dim]

 private:
  const int64_t kv_head_, first_key_;
  const int32_t* blocks_;
};

// The largest multiple of 32 below `end`: the first key of the last tile.
inline int64_t last_tile(int64_t end) { return (end - 1) / kTile * kTile; }

// Merges the parts of each tile of queries, in order, and writes the outputs.
template <typename T>
void write_merged(const Paged& paged, const std::vector<Task>& tasks, std::vector<Softmax>& partials) {
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].partial < 0 || tasks[i].first_key > 0) continue;
    Softmax& whole = partials[tasks[i].partial];
    for (size_t j = i + 1; j < tasks.size() && tasks[j].partial >= 0 && tasks[j].first_key > 0; ++j)
      whole.merge(partials[tasks[j].partial]);
    whole.write<T>(paged, tasks[i]);
  }
}

}  // namespace posenc
