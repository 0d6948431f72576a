// Paged attention with positions at read time: queries are turned for far pages. The Python side is read_time.py.

#include <cstdlib>

#include "columns.h"
#include "paged.h"
#include "pairs.h"

namespace posenc {

// Keys are read once for all rows of a task. Nothing is skipped for any row, so tasks are wider than those of a bias.
constexpr int64_t kReadTimeRows = 64;

// How a layer's queries are turned, and what the layer does to logits: encodings/far_pages.py has the formulas.
struct ReadTime {
  const int64_t* phases;  // [1 or 2][num_pairs], 2^-64 turns for each token: of bounded pages, and of those that leak
  const float* sinks;     // [num_heads], or null
  const float* k_scales;  // [num_kv_heads], or null for 1; v_scales, too
  const float* v_scales;
  int64_t num_pairs, is_neox_style;
  int64_t trained_length, page, edge, distance, leaks_from, bounded_from;
  int64_t temperature;  // 0: none, 1: logn, 2: yarn
  double tempered_from;
  float soft_cap;        // 0 for none
  int32_t may_use_tiles;  // whether the system lets this process use AMX
};

inline int64_t first_near_key(const ReadTime& read_time, int64_t position) {
  if (position < read_time.trained_length || position < read_time.edge) return 0;
  return (position - read_time.edge) / read_time.page * read_time.page;
}

inline float factor_of(const ReadTime& read_time, int64_t position) {
  const double length = static_cast<double>(position + 1);
  if (position < read_time.trained_length || !read_time.temperature || length <= read_time.tempered_from) return 1.0f;
  if (read_time.temperature == 1) return static_cast<float>(std::log(length) / std::log(read_time.tempered_from));
  const double root = 0.1 * std::log(length / read_time.tempered_from) + 1.0;
  return static_cast<float>(root * root);
}

// Cosine and sine of each pair's angle, off by at most 1.3e-7. Overflow of the product drops whole turns. The nearest
// quarter turn is subtracted without an error; the polynomials of Cephes' sinf and cosf take the rest.
inline void cos_sin(const int64_t* phases, int64_t num_pairs, int64_t tokens, float* cosines, float* sines) {
  const uint64_t turns = static_cast<uint64_t>(tokens);
#pragma omp simd
  for (int64_t p = 0; p < num_pairs; ++p) {
    const uint64_t angle = turns * static_cast<uint64_t>(phases[p]);
    const uint64_t quarter = (angle + (uint64_t{1} << 61)) >> 62;
    const int32_t rest = static_cast<int32_t>(static_cast<uint32_t>((angle - (quarter << 62)) >> 32));
    const float x = static_cast<float>(rest) * static_cast<float>(6.283185307179586 / 4294967296.0);
    const float square = x * x;
    const float sine =
        x + x * square * (-1.6666654611e-1f + square * (8.3321608736e-3f + square * -1.9515295891e-4f));
    const float cosine = 1.0f - 0.5f * square +
                         square * square *
                             (4.166664568298827e-2f +
                              square * (-1.388731625493765e-3f + square * 2.443315711809948e-5f));
    const int32_t quadrant = static_cast<int32_t>(quarter);
    const float c = quadrant & 1 ? sine : cosine, s = quadrant & 1 ? cosine : sine;
    cosines[p] = quadrant == 1 || quadrant == 2 ? -c : c;
    sines[p] = quadrant >= 2 ? -s : s;
  }
}

// The rows of a task, turned in one way. A query at i is turned by distance + j0 - i for the page of first key j0: by
// distance - i once for all pages, and by j0 with the same cosines and sines as all other queries.
struct Turn {
  const int64_t* phases;
  int64_t distance;
  Numbers<float> rows = {};  // turned by distance - i; empty as long as no page needs them
  Numbers<float> cosines = {}, sines = {};
  int64_t page = -1;  // whose first key the cosines and sines are for
};

// The rows of a task as each page reads them.
class Turned {
 public:
  Turned(const ReadTime& read_time, int64_t rows, int64_t group, int64_t head_dim, int64_t first_position,
         const float* queries)
      : read_time_(read_time),
        rows_(rows),
        group_(group),
        head_dim_(head_dim),
        first_position_(first_position),
        near_from_(rows),
        queries_(queries),
        bounded_{read_time.phases, read_time.distance},
        leaking_{read_time.phases + read_time.num_pairs, read_time.leaks_from} {
    for (int64_t r = 0; r < rows; ++r) near_from_[r] = first_near_key(read_time, first_position + r / group);
  }

  // The rows for the page that begins at `first_key`, [rows][head_dim]; valid until another page is asked for.
  const float* for_page(int64_t first_key) {
    if (first_key >= near_from_.back()) return queries_;  // later queries have no fewer far keys
    if (first_key == page_) return turned_.data();
    if (page_ < 0) turned_.assign(queries_, queries_ + rows_ * head_dim_);
    page_ = first_key;
    for (int64_t r = 0; r < rows_; ++r) {
      float* to = turned_.data() + r * head_dim_;
      if (first_key >= near_from_[r]) {
        std::copy_n(queries_ + r * head_dim_, head_dim_, to);
      } else {
        const int64_t back = first_position_ + r / group_ - first_key;
        const Turn& by = of_page(back < read_time_.bounded_from ? leaking_ : bounded_, first_key);
        turn(by, by.rows.data() + r * head_dim_, to);
      }
    }
    return turned_.data();
  }

 private:
  const Turn& of_page(Turn& by, int64_t first_key) {
    if (by.page == first_key) return by;
    if (by.page < 0) prepare(by);
    by.page = first_key;
    cos_sin(by.phases, read_time_.num_pairs, first_key, by.cosines.data(), by.sines.data());
    return by;
  }

  void prepare(Turn& by) const {
    by.cosines.resize(read_time_.num_pairs);
    by.sines.resize(read_time_.num_pairs);
    by.rows.assign(queries_, queries_ + rows_ * head_dim_);
    for (int64_t r = 0; r < rows_; ++r) {
      if (r % group_ == 0) {
        const int64_t tokens = by.distance - (first_position_ + r / group_);
        cos_sin(by.phases, read_time_.num_pairs, tokens, by.cosines.data(), by.sines.data());
      }
      turn(by, queries_ + r * head_dim_, by.rows.data() + r * head_dim_);
    }
  }

  // Turns the pairs of a row; the dimensions after them stay as they are in `to`.
  void turn(const Turn& by, const float* __restrict from, float* __restrict to) const {
    const int64_t pairs = read_time_.num_pairs;
    const float *cosines = by.cosines.data(), *sines = by.sines.data();
    if (read_time_.is_neox_style) {
      int64_t p = 0;
      for (; p + kLanes <= pairs; p += kLanes) {
        const Lanes x = load(from + p), y = load(from + p + pairs), c = load(cosines + p), s = load(sines + p);
        store(x * c - y * s, to + p);
        store(y * c + x * s, to + p + pairs);
      }
      for (; p < pairs; ++p) {
        const float x = from[p], y = from[p + pairs];
        to[p] = x * cosines[p] - y * sines[p];
        to[p + pairs] = y * cosines[p] + x * sines[p];
      }
    } else {
#pragma omp simd
      for (int64_t p = 0; p < pairs; ++p) {
        const float x = from[2 * p], y = from[2 * p + 1];
        to[2 * p] = x * cosines[p] - y * sines[p];
        to[2 * p + 1] = y * cosines[p] + x * sines[p];
      }
    }
  }

  const ReadTime& read_time_;
  const int64_t rows_, group_, head_dim_, first_position_;
  std::vector<int64_t> near_from_;  // by row
  const float* queries_;
  int64_t page_ = -1;
  Numbers<float> turned_;
  Turn bounded_, leaking_;
};

// Caps a row's scores, times `factor`, with a span of keys, the first of which is `key`. Masks keys from `end` on and
// those after `position`.
inline void cap_and_mask(float soft_cap, float factor, int64_t position, int64_t key, int64_t width, int64_t end,
                         float* scores) {
  if (soft_cap > 0) {
    for (float* tile = scores; tile < scores + width; tile += kTile) {
      for (int j = 0; j < kTile; ++j) tile[j] *= factor / soft_cap;
      hyperbolic_tangent(tile, tile);
      for (int j = 0; j < kTile; ++j) tile[j] *= soft_cap;
    }
  }
  const int64_t visible = std::max<int64_t>(0, std::min(end, position + 1) - key);
  if (visible < width) std::fill(scores + visible, scores + width, -INFINITY);
}

// What a task multiplies: rows with the keys of a span, and weights with its values. `cache` is the task's Reader. See
// PairedProducts.
template <typename T>
class Products : public ColumnProducts<T> {
 public:
  Products(const Paged& paged, const ReadTime&, int64_t rows) : ColumnProducts<T>(paged, rows) {}
};

template <typename T>
class Products<Paired<T>> : public PairedProducts<T> {
 public:
  Products(const Paged& paged, const ReadTime& read_time, int64_t rows)
      : PairedProducts<T>(rows, kSpan, paged.head_dim, paged.block_size, read_time.may_use_tiles) {}
};

template <typename T, typename Q>
Softmax attend(const Paged& paged, const ReadTime& read_time, const Task& task) {
  Reader<T, Q> reader(paged, task, 1.0f);
  const int64_t padded = (reader.rows + kPairs - 1) / kPairs * kPairs;
  Products<T> products(paged, read_time, reader.rows);
  const float scale = paged.scale * (read_time.k_scales ? read_time.k_scales[task.kv_head] : 1.0f);
  Numbers<float> factors(reader.rows);
  for (int64_t r = 0; r < reader.rows; ++r) {
    factors[r] = scale * factor_of(read_time, reader.position(r));
    if (products.weighs_by_factors()) continue;
    for (int64_t d = 0; d < paged.head_dim; ++d) reader.queries[r * paged.head_dim + d] *= factors[r];
    factors[r] = 1.0f;
  }
  Turned turned(read_time, reader.rows, reader.group, paged.head_dim, reader.first_position, reader.queries.data());
  Softmax softmax(reader.rows, paged.head_dim, padded);
  Numbers<float> scores(padded * kSpan), ones(reader.rows, 1.0f);
  int64_t page = -1;
  for (int64_t key = last_tile(task.end_key); key >= task.first_key;) {
    if (page != key / read_time.page) {
      page = key / read_time.page;
      products.take(turned.for_page(page * read_time.page));
    }
    // A span lies in one page. Where it begins does not depend on where a task ends: see Reader::span.
    const int64_t of_page = page * read_time.page;
    const int64_t first = std::max(task.first_key, of_page + (key - of_page) / kSpan * kSpan);
    const int64_t width = key + kTile - first;
    products.scores(reader, first, width, scores.data());
    for (int64_t r = 0; r < reader.rows; ++r)
      cap_and_mask(read_time.soft_cap, factors[r], reader.position(r), first, width, task.end_key, &scores[r * kSpan]);
    products.weigh(softmax, scores.data(), width, read_time.soft_cap > 0 ? ones.data() : factors.data());
    products.add(scores.data(), reader, first, std::min(width, task.end_key - first), softmax.sums());
    key = first - kTile;
  }
  if (read_time.v_scales) softmax.multiply_values(read_time.v_scales[task.kv_head]);
  if (read_time.sinks && task.first_key == 0)  // once, if the keys are in several tasks
    for (int64_t r = 0; r < reader.rows; ++r) softmax.include(r, read_time.sinks[reader.head(r)]);
  return softmax;
}

template <typename T, typename Q>
void attend_all(const Paged& paged, const ReadTime& read_time) {
  int64_t num_partials;
  const std::vector<Task> tasks = tasks_of(paged, &num_partials, kReadTimeRows);
  std::vector<Softmax> partials(num_partials, Softmax(0, paged.head_dim));
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < tasks.size(); ++i) {
    Softmax softmax = attend<T, Q>(paged, read_time, tasks[i]);
    if (tasks[i].partial < 0) {
      softmax.write<Q>(paged, tasks[i]);
    } else {
      partials[tasks[i].partial] = std::move(softmax);
    }
  }
  if (num_partials) write_merged<Q>(paged, tasks, partials);
}

}  // namespace posenc

// Queries of a cache in 8 bits are float32, so that each 8-bit type is compiled once.
extern "C" void posenc_read_time_attention(const posenc::Paged* paged, const posenc::ReadTime* read_time,
                                           int32_t dtype) {
  switch (dtype) {
    case 0:
      return posenc::attend_all<float, float>(*paged, *read_time);
    case 1:
      return posenc::attend_all<posenc::BFloat16, posenc::BFloat16>(*paged, *read_time);
    case 2:
      return posenc::attend_all<posenc::Half, posenc::Half>(*paged, *read_time);
    case 3:
      return posenc::attend_all<posenc::E4M3, float>(*paged, *read_time);
    case 4:
      return posenc::attend_all<posenc::E5M2, float>(*paged, *read_time);
    case 5:
      return posenc::attend_all<posenc::Paired<posenc::BFloat16>, posenc::BFloat16>(*paged, *read_time);
    case 6:
      return posenc::attend_all<posenc::Paired<posenc::E4M3>, posenc::BFloat16>(*paged, *read_time);
    case 7:
      return posenc::attend_all<posenc::Paired<posenc::E5M2>, posenc::BFloat16>(*paged, *read_time);
    default:
      std::abort();  // the Python side gives no other number
  }
}
