// Products over a block in the order of AMX: two numbers lie together that are multiplied by adjacent numbers of a row,
// and 16 such pairs make a row of a tile. Keys are [block_size / 16][head_dim / 2][16 keys][2 dimensions], values are
// [head_dim / 16][block_size / 2][16 dimensions][2 keys]. Where the processor has no tiles, vectors read the same order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "bfloat16_rows.h"
#include "paged.h"
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

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(POSENC_BFLOAT16_ROWS)
#define POSENC_TILES 1

constexpr int64_t kTileDepth = 2 * kPairs;             // numbers of a row that one instruction multiplies
constexpr int64_t kTileNumbers = kTileDepth * kPairs;  // of a tile

inline int64_t whole_tiles(int64_t rows) { return (rows + kPairs - 1) / kPairs * kPairs; }

// This thread's tiles, if any are wanted. They have 16 rows; those that do not hold columns have `rows`, if these are
// fewer. They are given back when the object ends.
class Tiles {
 public:
  Tiles(bool wanted, int64_t rows) : wanted_(wanted) {
    if (!wanted) return;
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } shape;
    std::fill_n(shape.bytes, 8, uint16_t{64});
    std::fill_n(shape.rows, 8, static_cast<uint8_t>(std::min(rows, kPairs)));
    std::fill_n(shape.rows + 2, 2, uint8_t{kPairs});
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

// c[..][32] = (add ? c : 0) + `rows` from `row` on, 32 of them or 16, times two groups of columns:
// `columns(k, group)` gives their numbers from `k` on, 16 rows of a tile.
template <typename Columns>
inline void product_in_tiles(const BFloat16Rows& rows, int64_t row, bool both, int64_t depth, Columns columns, float* c,
                             int64_t ldc, bool add) {
  const int64_t bytes = rows.depth() * 2;
  float* const below = c + kPairs * ldc;
  asm volatile("" ::: "memory");  // the compiler does not know that tiles read memory
  if (add) {
    _tile_loadd(4, c, ldc * 4);
    _tile_loadd(5, c + kPairs, ldc * 4);
    if (both) {
      _tile_loadd(6, below, ldc * 4);
      _tile_loadd(7, below + kPairs, ldc * 4);
    }
  } else {
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
  }
  for (int64_t k = 0; k < depth; k += kTileDepth) {
    _tile_loadd(2, columns(k, 0), 64);
    _tile_loadd(3, columns(k, 1), 64);
    _tile_loadd(0, rows.at(row, k), bytes);
    _tile_dpbf16ps(4, 0, 2);
    _tile_dpbf16ps(5, 0, 3);
    if (!both) continue;
    _tile_loadd(1, rows.at(row + kPairs, k), bytes);
    _tile_dpbf16ps(6, 1, 2);
    _tile_dpbf16ps(7, 1, 3);
  }
  _tile_stored(4, c, ldc * 4);
  _tile_stored(5, c + kPairs, ldc * 4);
  if (!both) return;
  _tile_stored(6, below, ldc * 4);
  _tile_stored(7, below + kPairs, ldc * 4);
}
#endif

// What a task multiplies in such blocks: rows with the keys of a span, and weights with its values. A span has up to
// `span` keys, in tiles of 32, each of which lies in one block.
template <typename T>
class PairedProducts {
 public:
  // `tiles`: whether the processor's tiles multiply, if it has any. Then no other object may configure them.
  PairedProducts(int64_t rows, int64_t span, int64_t head_dim, int64_t block_size, [[maybe_unused]] bool tiles)
      : rows_(rows),
        span_(span),
        head_dim_(head_dim),
        block_size_(block_size),
        tiles_(tiles),
        found_(span / kTile)
#ifdef POSENC_TILES
        ,
        configured_(tiles, rows),
        tiled_rows_(tiles ? whole_tiles(rows) : 0, head_dim),
        tiled_weights_(tiles ? whole_tiles(rows) : 0, span)
#endif
  {
  }

  // Whether factors multiply the scores, and not the rows: a query that is not turned is a number of bfloat16, and a
  // product would be rounded.
  bool weighs_by_factors() const { return tiles_; }

  // The rows that keys are multiplied with, [rows][head_dim]; they must stay until others are taken.
  void take(const float* rows) {
    taken_ = rows;
#ifdef POSENC_TILES
    if (!tiles_) return;
    tiled_rows_.take(rows, rows_);
#endif
  }

  // out[rows, a multiple of 16][span]: products with the span's keys. `cache.head_of(key)` is where a key's block begins.
  template <typename Cache>
  void scores(const Cache& cache, int64_t first, int64_t width, float* out) {
    for (int64_t key = first; key < first + width; key += kTile, out += kTile) {
      const BFloat16* keys = widened(cache.head_of(key) + key % block_size_ * head_dim_, 0, kTile * head_dim_, 1, 0);
#ifdef POSENC_TILES
      if (tiles_) {
        const auto columns = [&](int64_t d, int64_t group) { return keys + (group * head_dim_ + d) * kPairs; };
        for (int64_t row = 0; row < rows_; row += kTile)
          product_in_tiles(tiled_rows_, row, row + kPairs < rows_, head_dim_, columns, out + row * span_, span_,
                           /*add=*/false);
        continue;
      }
#endif
      product_of_pairs(taken_, head_dim_, keys, kPairs * head_dim_, out, span_, rows_, head_dim_, kTile, false);
    }
  }

  // Turns the scores of a span, each times its row's factor, into weights for `add`.
  void weigh(Softmax& softmax, float* scores, int64_t width, [[maybe_unused]] const float* factors) {
#ifdef POSENC_TILES
    if (tiles_)
      return tiled_weights_.weigh(softmax, scores, span_, width, factors);
#endif
    softmax.weigh(scores, span_, width);
  }

  // sums[rows, a multiple of 16][head_dim] += weights[rows][span] times the values of `num_keys` keys. Weights from there
  // up to the next multiple of 32 must be 0. Values there are not read as numbers.
  template <typename Cache>
  void add(const float* weights, const Cache& cache, int64_t first, int64_t num_keys, float* sums) {
    const int64_t num_tiles = (num_keys + kTile - 1) / kTile, groups = head_dim_ / kPairs;
    const int64_t in_block = std::is_same_v<T, BFloat16> ? block_size_ * kPairs : kTile * kPairs;
    for (int64_t t = 0; t < num_tiles; ++t) {
      const int64_t key = first + t * kTile;
      const Paired<T>* values = cache.head_of(key) + block_size_ * head_dim_ + key % block_size_ * kPairs;
      found_[t] = {widened(values, t, kTile * kPairs, groups, block_size_ * kPairs), in_block};
    }
#ifdef POSENC_TILES
    if (tiles_) {
      if (num_keys % kTile) found_[num_tiles - 1] = cut(found_[num_tiles - 1], num_keys % kTile);
      for (int64_t column = 0; column < groups; column += 2) {
        const auto columns = [&](int64_t key, int64_t group) {
          return found_[key / kTile].numbers + (column + group) * found_[key / kTile].group;
        };
        for (int64_t row = 0; row < rows_; row += kTile)
          product_in_tiles(tiled_weights_, row, row + kPairs < rows_, num_tiles * kTile, columns,
                           sums + row * head_dim_ + column * kPairs, head_dim_, /*add=*/true);
      }
      return;
    }
#endif
    for (int64_t t = 0; t < num_tiles; ++t)
      product_of_pairs(weights + t * kTile, span_, found_[t].numbers, found_[t].group, sums, head_dim_, rows_,
                       std::min<int64_t>(kTile, num_keys - t * kTile), head_dim_, true);
  }

 private:
  // The values of 32 keys: 16 dimensions together, and the next ones `group` numbers after them.
  struct Values {
    const BFloat16* numbers;
    int64_t group;
  };

  // The same numbers in bfloat16, which has each of 8 bits: `count` of each group, and groups `stride` apart.
  const BFloat16* widened(const Paired<T>* from, int64_t tile, int64_t count, int64_t groups, int64_t stride) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      return reinterpret_cast<const BFloat16*>(from);
    } else {
      widened_.resize(span_ * head_dim_);
      BFloat16* to = &widened_[tile * kTile * head_dim_];
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t i = 0; i < count; i += kLanes) {
          const Lanes numbers = load(reinterpret_cast<const T*>(from) + g * stride + i);
          for (int lane = 0; lane < kLanes; ++lane) store(numbers[lane], to + g * count + i + lane);
        }
      return to;
    }
  }

#ifdef POSENC_TILES
  // A copy of values, with 0 from key `num_keys` on.
  Values cut(Values values, int64_t num_keys) {
    last_.resize(head_dim_ / kPairs * kTileNumbers);
    for (int64_t g = 0; g < head_dim_ / kPairs; ++g)
      for (int64_t i = 0; i < kTileNumbers; ++i) {
        const int64_t key = i / (2 * kPairs) * 2 + i % 2;
        last_[g * kTileNumbers + i] = key < num_keys ? values.numbers[g * values.group + i] : BFloat16{0};
      }
    return {last_.data(), kTileNumbers};
  }
#endif

  const int64_t rows_, span_, head_dim_, block_size_;
  const bool tiles_;
  const float* taken_ = nullptr;
  std::vector<Values> found_;
  Numbers<BFloat16> widened_, last_;
#ifdef POSENC_TILES
  const Tiles configured_;
  BFloat16Rows tiled_rows_, tiled_weights_;
#endif
};

}  // namespace posenc
