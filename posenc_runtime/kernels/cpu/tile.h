// Arithmetic on tiles of 32 keys: products, exponentials, conversions. Everything is float32 once it is loaded.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace posenc {

constexpr int kTile = 32;  // keys, and columns of a product

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRows = 6;  // of a product at a time, so that its sums stay in registers
#else
constexpr int kLanes = 8;
constexpr int kRows = 3;
#endif

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), may_alias, aligned(4)));

struct BFloat16 {
  uint16_t bits;
};
typedef _Float16 Half;

inline float to_float(float x) { return x; }
inline float to_float(Half x) { return static_cast<float>(x); }
inline float to_float(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline void store(float x, float* to) { *to = x; }
inline void store(float x, Half* to) { *to = static_cast<Half>(x); }
inline void store(float x, BFloat16* to) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    to->bits = static_cast<uint16_t>((bits >> 16) | 0x40u);  // NaN stays one
  } else {
    to->bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);  // to nearest, ties to even
  }
}

// c[r][0, width) = (add ? c : 0) + sum over k < depth of a[r][k] b[k][0, width), for R rows and width = VECTORS * kLanes.
// The sum is taken by itself before it is added: a thousand keys one by one would be as wrong as a thousand roundings.
template <int R, int VECTORS>
inline void product_of_rows(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                            int64_t depth, bool add) {
  Lanes sums[R][VECTORS];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) sums[r][v] = Lanes{};
  for (int64_t k = 0; k < depth; ++k) {
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
      const Lanes column = *reinterpret_cast<const Lanes*>(b + k * ldb + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r][v] += a[r * lda + k] * column;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
      Lanes* to = reinterpret_cast<Lanes*>(c + r * ldc + v * kLanes);
      *to = add ? *to + sums[r][v] : sums[r][v];
    }
}

template <int VECTORS>
inline void product_of_width(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                             int64_t rows, int64_t depth, bool add) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    product_of_rows<kRows, VECTORS>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth, add);
  for (; r < rows; ++r) product_of_rows<1, VECTORS>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth, add);
}

// c[rows][width] = (add ? c : 0) + a[rows][depth] b[depth][width]; width is a multiple of kLanes.
inline void product(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t rows,
                    int64_t depth, int64_t width, bool add) {
  constexpr int kWide = kTile / kLanes;
  int64_t column = 0;
  for (; column + kTile <= width; column += kTile)
    product_of_width<kWide>(a, lda, b + column, ldb, c + column, ldc, rows, depth, add);
  for (; column < width; column += kLanes)
    product_of_width<1>(a, lda, b + column, ldb, c + column, ldc, rows, depth, add);
}

// e^x of 32 numbers, to 2 units in the last place; 0 below -87, where float32 runs out of normal numbers. Cephes' expf.
inline void exponential(const float* x, float* out) {
#pragma omp simd
  for (int i = 0; i < kTile; ++i) {
    const float bounded = x[i] < -87.0f ? -87.0f : (x[i] > 88.0f ? 88.0f : x[i]);
    const float shifted = bounded * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
    const float n = shifted - 12582912.0f;
    const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    out[i] = x[i] < -87.0f ? 0.0f : p * power;
  }
}

// rows x columns numbers at a stride, as float32: themselves where they are float32 already, else copied into scratch.
template <typename T>
inline const float* as_float(const T* from, int64_t stride, int64_t rows, int64_t columns, float* scratch,
                             int64_t* scratch_stride) {
  if constexpr (std::is_same_v<T, float>) {
    *scratch_stride = stride;
    return from;
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = from + r * stride;
      float* to = scratch + r * columns;
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) to[i] = to_float(row[i]);
    }
    *scratch_stride = columns;
    return scratch;
  }
}

}  // namespace posenc
