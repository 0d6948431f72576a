// Vectors of float32, and the conversion of each data type to and from them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace posenc {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#if defined(__AVX512BF16__)
constexpr const char* kInstructions = "AVX-512 with bfloat16";
#else
constexpr const char* kInstructions = "AVX-512";
#endif
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr const char* kInstructions = "AVX2";
#else
constexpr int kLanes = 8;
constexpr const char* kInstructions = "vectors of 8 numbers";
#endif

// Numbers that begin at a line of the processor's cache: a vector that crosses two lines is loaded in two steps.
template <typename T>
struct Aligned {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  Aligned() = default;
  template <typename U>
  Aligned(const Aligned<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* numbers, size_t) { ::operator delete(numbers, kLine); }
  friend bool operator==(const Aligned&, const Aligned&) { return true; }
  friend bool operator!=(const Aligned&, const Aligned&) { return false; }
};
template <typename T>
using Numbers = std::vector<T, Aligned<T>>;

struct BFloat16 {
  uint16_t bits;
};
typedef _Float16 Half;
struct E4M3 {  // float8_e4m3fn: no infinity, and a NaN where all other bits are set
  uint8_t bits;
};
struct E5M2 {  // float8_e5m2: the upper half of a float16
  uint8_t bits;
};

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), may_alias, aligned(4)));
typedef int32_t Integers __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef uint16_t Shorts __attribute__((vector_size(kLanes * sizeof(uint16_t)), may_alias, aligned(2)));
typedef Half Halves __attribute__((vector_size(kLanes * sizeof(Half)), may_alias, aligned(2)));

inline float to_float(float x) { return x; }
inline float to_float(Half x) { return static_cast<float>(x); }
inline float to_float(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float to_float(E5M2 x) {
  const uint16_t bits = static_cast<uint16_t>(x.bits << 8);
  Half value;
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<float>(value);
}
inline float to_float(E4M3 x) {
  // Four bits of exponent, biased by 7, in the place of eight, biased by 127. This also holds for subnormal numbers.
  const uint32_t bits = static_cast<uint32_t>(x.bits & 0x80u) << 24 | static_cast<uint32_t>(x.bits & 0x7fu) << 20;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return (x.bits & 0x7fu) == 0x7fu ? NAN : value * 0x1p120f;
}

inline Lanes load(const float* from) { return *reinterpret_cast<const Lanes*>(from); }

// Written with intrinsics where GCC 12 would split a conversion: 16 numbers into twice 8, and float16 one by one.
inline Lanes load(const BFloat16* from) {
#if defined(__AVX512F__)
  const __m256i shorts = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return reinterpret_cast<Lanes>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(shorts), 16));
#else
  return reinterpret_cast<Lanes>(__builtin_convertvector(*reinterpret_cast<const Shorts*>(from), Words) << 16);
#endif
}

inline Lanes load(const Half* from) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__) && defined(__AVX2__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  return __builtin_convertvector(*reinterpret_cast<const Halves*>(from), Lanes);
#endif
}

inline Lanes load(const E5M2* from) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
#else
  Lanes values;
  for (int i = 0; i < kLanes; ++i) values[i] = to_float(from[i]);
  return values;
#endif
}

inline Lanes load(const E4M3* from) {
#if defined(__AVX512F__)
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  const __m512i rest = _mm512_and_si512(bytes, _mm512_set1_epi32(0x7f));
  const __m512i sign = _mm512_slli_epi32(_mm512_andnot_si512(_mm512_set1_epi32(0x7f), bytes), 24);
  const __m512 value = _mm512_castsi512_ps(_mm512_or_si512(sign, _mm512_slli_epi32(rest, 20)));
  const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(rest, _mm512_set1_epi32(0x7f));
  return _mm512_mask_blend_ps(is_nan, _mm512_mul_ps(value, _mm512_set1_ps(0x1p120f)), _mm512_set1_ps(NAN));
#else
  Lanes values;
  for (int i = 0; i < kLanes; ++i) values[i] = to_float(from[i]);
  return values;
#endif
}

inline bool any_above(Lanes x, float bound) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x), _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_cmp_ps(reinterpret_cast<__m256>(x), _mm256_set1_ps(bound), _CMP_GT_OQ)) != 0;
#else
  for (int i = 0; i < kLanes; ++i)
    if (x[i] > bound) return true;
  return false;
#endif
}

inline void store(Lanes x, float* to) { *reinterpret_cast<Lanes*>(to) = x; }
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

}  // namespace posenc
