// Products over a block in the order of AMX: two numbers lie together that are multiplied by adjacent numbers of a row,
// and 16 such pairs make a row of a tile. Keys are [block_size / 16][head_dim / 2][16 keys][2 dimensions], values are
// [head_dim / 16][block_size / 2][16 dimensions][2 keys]. Where the processor has no tiles, vectors read the same order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tile.h"

namespace posenc {

constexpr int64_t kPairs = 16;  // in a row of a tile

// A number of a cache in this order. T is the data type that keeps it.
template <typename T>
struct Paired {
  T number;
};

// Two numbers of each of kLanes pairs, as vectors of the first and of the second ones.
inline Lanes first_of_pairs(const BFloat16* pairs) {
  Words words;
  std::memcpy(&words, pairs, sizeof words);
  return reinterpret_cast<Lanes>(words << 16);
}
inline Lanes second_of_pairs(const BFloat16* pairs) {
  Words words;
  std::memcpy(&words, pairs, sizeof words);
  return reinterpret_cast<Lanes>(words & 0xffff0000u);
}

// c[r][0, V * kLanes) = (add ? c : 0) + sum over k < depth of a[r][k] b[k]. Columns are in groups of 16, which are
// `group` numbers apart.
template <int R, int V>
inline void pairs_in_registers(const float* a, int64_t lda, const BFloat16* b, int64_t group, float* c, int64_t ldc,
                               int64_t depth, bool add) {
  Lanes sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = Lanes{};
  for (int64_t k = 0; k < depth; k += 2) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const BFloat16* pairs = b + v * kLanes / kPairs * group + k * kPairs + v * kLanes % kPairs * 2;
      const Lanes first = first_of_pairs(pairs);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r][v] += a[r * lda + k] * first;
      if (k + 1 == depth) continue;  // the second number of the last pair is nobody's, and may not be one
      const Lanes second = second_of_pairs(pairs);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r][v] += a[r * lda + k + 1] * second;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      Lanes* to = reinterpret_cast<Lanes*>(c + r * ldc + v * kLanes);
      *to = add ? *to + sums[r][v] : sums[r][v];
    }
}

// c[rows][width] = (add ? c : 0) + a[rows][depth] b; width is a multiple of 16.
template <int R = 4>
inline void product_of_pairs(const float* a, int64_t lda, const BFloat16* b, int64_t group, float* c, int64_t ldc,
                             int64_t rows, int64_t depth, int64_t width, bool add) {
  const int64_t whole = rows / R * R;
  for (int64_t column = 0; column < width; column += kPairs)
    for (int64_t r = 0; r < whole; r += R)
      pairs_in_registers<R, kPairs / kLanes>(a + r * lda, lda, b + column / kPairs * group, group,
                                             c + r * ldc + column, ldc, depth, add);
  if constexpr (R > 1)
    if (rows > whole)
      product_of_pairs<1>(a + whole * lda, lda, b, group, c + whole * ldc, ldc, rows - whole, depth, width, add);
}

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define POSENC_TILES 1

constexpr int64_t kTileDepth = 2 * kPairs;             // numbers of a row that one instruction multiplies
constexpr int64_t kTileNumbers = kTileDepth * kPairs;  // of a tile

inline int64_t whole_tiles(int64_t rows) { return (rows + kPairs - 1) / kPairs * kPairs; }

// This thread's tiles, if any are wanted: eight of 16 rows. They are given back when the object ends.
class Tiles {
 public:
  explicit Tiles(bool wanted) : wanted_(wanted) {
    if (!wanted) return;
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } shape;
    std::fill_n(shape.bytes, 8, uint16_t{64});
    std::fill_n(shape.rows, 8, uint8_t{kPairs});
    // GCC takes the instruction to read eight bytes, and would write the others after it.
    asm volatile("" : : "r"(&shape) : "memory");
    _tile_loadconfig(&shape);
  }
  ~Tiles() {
    if (wanted_) _tile_release();
  }

 private:
  const bool wanted_;
};

// Rows of float32 as sums of two bfloat16: what is left is 2^-17 of a number.
class SplitRows {
 public:
  SplitRows(int64_t rows, int64_t depth)
      : depth_(depth), high_(whole_tiles(rows) * depth), low_(whole_tiles(rows) * depth) {}

  // Takes `width` numbers of each row, a multiple of 16.
  void take(const float* rows, int64_t stride, int64_t num_rows, int64_t width) {
    for (int64_t r = 0; r < num_rows; ++r)
      for (int64_t k = 0; k < width; k += kPairs) {
        const __m512 x = _mm512_loadu_ps(rows + r * stride + k);
        const __m256bh high = _mm512_cvtneps_pbh(x);
        const __m512 widened = _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(reinterpret_cast<const __m256i&>(high)), 16));
        const __m256bh low = _mm512_cvtneps_pbh(_mm512_sub_ps(x, widened));
        std::memcpy(&high_[r * depth_ + k], &high, sizeof high);
        std::memcpy(&low_[r * depth_ + k], &low, sizeof low);
      }
  }

  // c[rows][32] = the rows from `row` on, 32 of them or 16, times two groups of columns, `group` numbers apart. `last`,
  // if not null, has the last 32 numbers of the depth of both columns in the place of `b`.
  void multiply(int64_t row, bool both, const BFloat16* b, int64_t group, const BFloat16* last, int64_t depth, float* c,
                int64_t ldc) const {
    const int64_t bytes = depth_ * 2;
    const uint16_t *high = &high_[row * depth_], *low = &low_[row * depth_];
    asm volatile("" ::: "memory");  // the compiler does not know that tiles read memory
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t k = 0; k < depth; k += kTileDepth) {
      const bool is_last = last && k + kTileDepth == depth;
      const BFloat16* columns = is_last ? last : b + k * kPairs;
      _tile_loadd(2, columns, 64);
      _tile_loadd(3, columns + (is_last ? kTileNumbers : group), 64);
      for (const uint16_t* part : {high, low}) {
        _tile_loadd(0, part + k, bytes);
        _tile_dpbf16ps(4, 0, 2);
        _tile_dpbf16ps(5, 0, 3);
        if (!both) continue;
        _tile_loadd(1, part + kPairs * depth_ + k, bytes);
        _tile_dpbf16ps(6, 1, 2);
        _tile_dpbf16ps(7, 1, 3);
      }
    }
    _tile_stored(4, c, ldc * 4);
    _tile_stored(5, c + kPairs, ldc * 4);
    if (!both) return;
    _tile_stored(6, c + kPairs * ldc, ldc * 4);
    _tile_stored(7, c + kPairs * ldc + kPairs, ldc * 4);
  }

 private:
  int64_t depth_;
  std::vector<uint16_t> high_, low_;  // [rows, a multiple of 16][depth]
};
#endif

// What a task multiplies in such blocks: rows with the keys of a span, and weights with its values.
template <typename T>
class PairedProducts {
 public:
  // `tiles`: whether the processor's tiles multiply, if it has any. Then no other object may configure them.
  PairedProducts(int64_t rows, int64_t span, int64_t head_dim, int64_t block_size, bool tiles)
      : rows_(rows),
        span_(span),
        head_dim_(head_dim),
        block_size_(block_size),
        tiles_(tiles)
#ifdef POSENC_TILES
        ,
        configured_(tiles),
        split_rows_(tiles ? rows : 0, head_dim),
        split_weights_(tiles ? rows : 0, span)
#endif
  {
  }

  // The rows that keys are multiplied with, [rows][head_dim]; they must stay until others are taken.
  void take(const float* rows) {
    taken_ = rows;
#ifdef POSENC_TILES
    if (tiles_) split_rows_.take(rows, head_dim_, rows_, head_dim_);
#endif
  }

  // out[rows, a multiple of 16][span]: products with keys of a block, `num_keys` from `offset` on, multiples of 32.
  void scores(const Paired<T>* head, int64_t offset, int64_t num_keys, float* out) {
    const BFloat16* keys = widened(head + offset * head_dim_, num_keys * head_dim_, 1, 0);
    const int64_t group = kPairs * head_dim_;
#ifdef POSENC_TILES
    if (tiles_) {
      for (int64_t key = 0; key < num_keys; key += kTile)
        for (int64_t row = 0; row < rows_; row += kTile)
          split_rows_.multiply(row, row + kPairs < rows_, keys + key * head_dim_, group, nullptr, head_dim_,
                               out + row * span_ + key, span_);
      return;
    }
#endif
    product_of_pairs(taken_, head_dim_, keys, group, out, span_, rows_, head_dim_, num_keys, false);
  }

  // sums[rows][head_dim] += weights[rows][span] times values of a block. Weights from `num_keys` up to the next multiple
  // of 32 must be 0. Values there are not read as numbers.
  void add(const float* weights, const Paired<T>* head, int64_t offset, int64_t num_keys, float* sums) {
    const int64_t depth = (num_keys + kTile - 1) / kTile * kTile, groups = head_dim_ / kPairs;
    const Paired<T>* first = head + block_size_ * head_dim_ + offset * kPairs;
    const BFloat16* values = widened(first, depth * kPairs, groups, block_size_ * kPairs);
    const int64_t group = (std::is_same_v<T, BFloat16> ? block_size_ : depth) * kPairs;
#ifdef POSENC_TILES
    if (tiles_) {
      split_weights_.take(weights, span_, rows_, depth);
      if (num_keys < depth) cut(values + (depth - kTile) * kPairs, group, num_keys - (depth - kTile));
      alignas(64) float found[kTile * kTile];
      for (int64_t column = 0; column < groups; column += 2)
        for (int64_t row = 0; row < rows_; row += kTile) {
          const BFloat16* last = num_keys < depth ? &last_[column * kTileNumbers] : nullptr;
          split_weights_.multiply(row, row + kPairs < rows_, values + column * group, group, last, depth, found, kTile);
          for (int64_t r = row; r < std::min(rows_, row + kTile); ++r) {
            float* to = sums + r * head_dim_ + column * kPairs;
#pragma omp simd
            for (int64_t d = 0; d < kTile; ++d) to[d] += found[(r - row) * kTile + d];
          }
        }
      return;
    }
#endif
    product_of_pairs(weights, span_, values, group, sums, head_dim_, rows_, num_keys, head_dim_, true);
  }

 private:
  // The same numbers in bfloat16, which has each of 8 bits: `count` of each group, and groups `stride` apart.
  const BFloat16* widened(const Paired<T>* from, int64_t count, int64_t groups, int64_t stride) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      return reinterpret_cast<const BFloat16*>(from);
    } else {
      widened_.resize(count * groups);
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t i = 0; i < count; i += kLanes) {
          const Lanes numbers = load(reinterpret_cast<const T*>(from) + g * stride + i);
          for (int lane = 0; lane < kLanes; ++lane) store(numbers[lane], &widened_[g * count + i + lane]);
        }
      return widened_.data();
    }
  }

#ifdef POSENC_TILES
  // Copies the last 32 values of each group, with 0 from `num_keys` on.
  void cut(const BFloat16* values, int64_t group, int64_t num_keys) {
    last_.resize(head_dim_ / kPairs * kTileNumbers);
    for (int64_t g = 0; g < head_dim_ / kPairs; ++g)
      for (int64_t i = 0; i < kTileNumbers; ++i) {
        const int64_t key = i / (2 * kPairs) * 2 + i % 2;
        last_[g * kTileNumbers + i] = key < num_keys ? values[g * group + i] : BFloat16{0};
      }
  }
#endif

  const int64_t rows_, span_, head_dim_, block_size_;
  const bool tiles_;
  const float* taken_ = nullptr;
  std::vector<BFloat16> widened_, last_;
#ifdef POSENC_TILES
  const Tiles configured_;
  SplitRows split_rows_, split_weights_;
#endif
};

}  // namespace posenc
