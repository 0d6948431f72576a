// Products over a block in the order of columns: keys are [head_dim][block_size], values are [block_size][head_dim].
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "bfloat16_rows.h"
#include "paged.h"
#include "tile.h"

namespace posenc {

// Calls `of_block(key, num_keys)` for the keys of each block.
template <typename OfBlock>
inline void each_block(int64_t block_size, int64_t first, int64_t num_keys, OfBlock of_block) {
  for (int64_t key = first, end = first + num_keys; key < end;) {
    const int64_t some = std::min(end - key, block_size - key % block_size);
    of_block(key, some);
    key += some;
  }
}

// What a task multiplies in such blocks. Its methods are those of PairedProducts.
template <typename T>
class ColumnProducts {
 public:
  ColumnProducts(const Paged& paged, int64_t rows) : paged_(paged), rows_(rows) {}
  bool weighs_by_factors() const { return false; }
  void take(const float* rows) { taken_ = rows; }
  template <typename Cache>
  void scores(const Cache& cache, int64_t first, int64_t width, float* out) const {
    each_block(paged_.block_size, first, width, [&](int64_t key, int64_t num_keys) {
      product(taken_, paged_.head_dim, cache.keys(key), paged_.block_size, out + key - first, kSpan, rows_,
              paged_.head_dim, num_keys, false);
    });
  }
  void weigh(Softmax& softmax, float* scores, int64_t width, const float*) const {
    softmax.weigh(scores, kSpan, width);
  }
  template <typename Cache>
  void add(const float* weights, const Cache& cache, int64_t first, int64_t num_keys, float* sums) const {
    each_block(paged_.block_size, first, num_keys, [&](int64_t key, int64_t of_block) {
      product(weights + key - first, kSpan, cache.values(key), paged_.head_dim, sums, paged_.head_dim, rows_, of_block,
              paged_.head_dim, true);
    });
  }

 private:
  const Paged& paged_;
  const int64_t rows_;
  const float* taken_ = nullptr;
};

#ifdef POSENC_BFLOAT16_ROWS
// 16 or 32 numbers; zeros where there are none.
template <int Width>
inline __m512i numbers_of_row(const BFloat16* from) {
  if (!from) return _mm512_setzero_si512();
  if constexpr (Width == 16) return _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_loadu_si512(from);
}

// Two rows of 16 * V numbers each, as V vectors of pairs: a number of the first row, and the one below it.
template <int V>
inline void pairs_of_rows(const BFloat16* upper, const BFloat16* lower, __m512bh* pairs) {
  const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
#pragma GCC unroll 4
  for (int v = 0; v < V; v += 2) {
    constexpr int kLoaded = V == 1 ? 16 : 32;
    const __m512i x = numbers_of_row<kLoaded>(upper ? upper + v * kLanes : nullptr);
    const __m512i y = numbers_of_row<kLoaded>(lower ? lower + v * kLanes : nullptr);
    pairs[v] = reinterpret_cast<__m512bh>(_mm512_permutex2var_epi16(x, first, y));
    if constexpr (V > 1) pairs[v + 1] = reinterpret_cast<__m512bh>(_mm512_permutex2var_epi16(x, second, y));
  }
}

// The same as for other numbers, of rows in bfloat16: `product` takes it where `a` has such rows. Where depth is odd, a has
// one number more, which is multiplied with 0.
template <int R, int V>
inline void product_in_registers(const uint16_t* a, int64_t lda, const BFloat16* b, int64_t ldb, float* c, int64_t ldc,
                                 int64_t depth, bool add) {
  __m512 sums[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[r][v] = _mm512_setzero_ps();
  for (int64_t k = 0; k < depth; k += 2) {
    __m512bh pairs[V];
    pairs_of_rows<V>(b + k * ldb, k + 1 < depth ? b + (k + 1) * ldb : nullptr, pairs);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int32_t two;
      std::memcpy(&two, a + r * lda + k, sizeof two);
      const __m512bh of_row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(two));
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], of_row, pairs[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      Lanes* to = reinterpret_cast<Lanes*>(c + r * ldc + v * kLanes);
      *to = add ? *to + reinterpret_cast<Lanes>(sums[r][v]) : reinterpret_cast<Lanes>(sums[r][v]);
    }
}

// Where the processor multiplies pairs of bfloat16, it takes half as many steps as in float32, and numbers of the cache
// are not widened. Rows and weights are rounded to bfloat16, as for AMX.
template <>
class ColumnProducts<BFloat16> {
 public:
  ColumnProducts(const Paged& paged, int64_t rows)
      : paged_(paged), rows_(rows), taken_(rows, paged.head_dim), weights_(rows, kSpan) {}
  bool weighs_by_factors() const { return true; }
  void take(const float* rows) { taken_.take(rows, rows_); }
  template <typename Cache>
  void scores(const Cache& cache, int64_t first, int64_t width, float* out) const {
    each_block(paged_.block_size, first, width, [&](int64_t key, int64_t num_keys) {
      product(taken_.at(0, 0), paged_.head_dim, cache.keys(key), paged_.block_size, out + key - first, kSpan, rows_,
              paged_.head_dim, num_keys, false);
    });
  }
  void weigh(Softmax& softmax, const float* scores, int64_t width, const float* factors) {
    weights_.weigh(softmax, scores, kSpan, width, factors);
  }
  template <typename Cache>
  void add(const float*, const Cache& cache, int64_t first, int64_t num_keys, float* sums) const {
    each_block(paged_.block_size, first, num_keys, [&](int64_t key, int64_t of_block) {
      product(weights_.at(0, key - first), kSpan, cache.values(key), paged_.head_dim, sums, paged_.head_dim, rows_,
              of_block, paged_.head_dim, true);
    });
  }

 private:
  const Paged& paged_;
  const int64_t rows_;
  BFloat16Rows taken_, weights_;
};
#endif

}  // namespace posenc
