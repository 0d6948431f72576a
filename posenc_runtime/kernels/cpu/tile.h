// Arithmetic on tiles of 32 keys: products, maxima, exponentials. All numbers become float32 when they are loaded.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lanes.h"

namespace posenc {

constexpr int kTile = 32;  // keys

// The most rows of a product at a time, so that sums and columns stay in registers. With only 16 registers, columns
// that have to be converted are used for more rows than float32 ones.
template <typename T>
constexpr int kRows = kLanes == 16 ? 8 : std::is_same_v<T, float> ? 3 : 4;

// c[r][0, width) = (add ? c : 0) + sum over k < depth of a[r][k] b[k][0, width), for R rows and width = V * kLanes.
// The sum is complete before it is added to c: adding a thousand keys to c one by one would round a thousand times.
template <int R, int V, typename T>
inline void product_in_registers(const float* a, int64_t lda, const T* b, int64_t ldb, float* c, int64_t ldc,
                                 int64_t depth, bool add) {
  Lanes sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[r][v] = Lanes{};
  for (int64_t k = 0; k < depth; ++k) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const Lanes columns = load(b + k * ldb + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r][v] += a[r * lda + k] * columns;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      Lanes* to = reinterpret_cast<Lanes*>(c + r * ldc + v * kLanes);
      *to = add ? *to + sums[r][v] : sums[r][v];
    }
}

template <int R, int V, typename A, typename T>
inline void product_of_rows(const A* a, int64_t lda, const T* b, int64_t ldb, float* c, int64_t ldc, int64_t depth,
                            int64_t width, bool add) {
  constexpr int kWide = V * kLanes;
  for (; width >= kWide; width -= kWide, b += kWide, c += kWide)
    product_in_registers<R, V>(a, lda, b, ldb, c, ldc, depth, add);
  if constexpr (V > 1)
    if (width > 0) product_of_rows<R, V / 2>(a, lda, b, ldb, c, ldc, depth, width, add);
}

// With up to so many rows, a product waits for memory, and not for arithmetic. None where the processor has 16 registers:
// they do not hold the sums of two rows with so many columns.
constexpr int64_t kFewRows = kLanes == 16 ? 8 : 0;

// c[rows][width] = (add ? c : 0) + a[rows][depth] b[depth][width]; width is a multiple of kLanes. With few rows, more
// columns are taken at a time: memory is read from end to end, and each addition waits for the one before it, so that
// other sums fill the time. With many rows, a few columns are taken for all of them, because these columns stay in the
// first-level cache, and all would not.
template <typename T, int R = kRows<T>, typename A>
inline void product(const A* a, int64_t lda, const T* b, int64_t ldb, float* c, int64_t ldc, int64_t rows,
                    int64_t depth, int64_t width, bool add) {
  constexpr int V = R <= (kFewRows ? 2 : 1) ? 8 : R < 4 ? 4 : 2, kFewer = kFewRows && R > 2 ? 2 : (R + 1) / 2;
  const int64_t whole = R > 2 && rows <= kFewRows ? 0 : rows / R * R;
  for (int64_t column = 0; column < width; column += V * kLanes) {
    const int64_t some = width - column < V * kLanes ? width - column : V * kLanes;
    for (int64_t r = 0; r < whole; r += R)
      product_of_rows<R, V>(a + r * lda, lda, b + column, ldb, c + r * ldc + column, ldc, depth, some, add);
  }
  if constexpr (R > 1)
    if (rows > whole)
      product<T, kFewer>(a + whole * lda, lda, b, ldb, c + whole * ldc, ldc, rows - whole, depth, width, add);
}

// The largest number. A NaN may hide others.
inline float largest_of(Lanes x) {
  float largest = x[0];
  for (int i = 1; i < kLanes; ++i) largest = largest < x[i] ? x[i] : largest;
  return largest;
}

// e^x for |x| of at most half of ln 2, by the polynomial of Cephes' expf.
inline Lanes small_exponential(Lanes x) {
  Lanes p = Lanes{} + 1.9875691500e-4f;
  p = p * x + 1.3981999507e-3f;
  p = p * x + 8.3334519073e-3f;
  p = p * x + 4.1665795894e-2f;
  p = p * x + 1.6666665459e-1f;
  p = p * x + 5.0000001201e-1f;
  return p * x * x + x + 1.0f;
}

// e^x, to 2 units in the last place; 0 below -87, where float32 has no normal numbers.
inline Lanes exponential(Lanes x) {
#if defined(__AVX512F__)
  const __m512 n = _mm512_roundscale_ps(reinterpret_cast<__m512>(x * 1.44269504088896341f), _MM_FROUND_TO_NEAREST_INT);
  const Lanes whole = reinterpret_cast<Lanes>(n);
  const Lanes p = small_exponential((x - whole * 0.693359375f) + whole * 2.12194440e-4f);
  const __mmask16 is_normal = _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x), _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
  return reinterpret_cast<Lanes>(_mm512_maskz_scalef_ps(is_normal, reinterpret_cast<__m512>(p), n));
#else
  const Lanes zero = {};
  const Lanes least = zero - 87.0f, most = zero + 88.0f, rounder = zero + 12582912.0f;  // 1.5 * 2^23
  Lanes bounded = x < least ? least : x;
  bounded = bounded > most ? most : bounded;
  const Lanes n = (bounded * 1.44269504088896341f + rounder) - rounder;  // rounds to an integer
  const Lanes p = small_exponential((bounded - n * 0.693359375f) + n * 2.12194440e-4f);
  const Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
  return x < least ? zero : p * reinterpret_cast<Lanes>(power);
#endif
}

// The same of 32 numbers.
inline void exponential(const float* x, float* out) {
  for (int i = 0; i < kTile; i += kLanes) *reinterpret_cast<Lanes*>(out + i) = exponential(load(x + i));
}

// tanh of 32 numbers, by Cephes' tanhf: relative precision near zero, where 1 - 2 / (e^2x + 1) would cancel.
inline void hyperbolic_tangent(const float* x, float* out) {
  float doubled[kTile];
  for (int i = 0; i < kTile; ++i) doubled[i] = 2.0f * std::fabs(x[i]);
  exponential(doubled, doubled);
#pragma omp simd
  for (int i = 0; i < kTile; ++i) {
    const float square = x[i] * x[i];
    float p = -5.70498872745e-3f;
    p = p * square + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    const float small = x[i] + x[i] * square * p;
    const float large = std::copysign(1.0f - 2.0f / (doubled[i] + 1.0f), x[i]);
    out[i] = std::fabs(x[i]) < 0.625f ? small : large;
  }
}

}  // namespace posenc
