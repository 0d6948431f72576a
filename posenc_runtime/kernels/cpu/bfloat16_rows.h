// Rows and weights in bfloat16, for processors that multiply pairs of such numbers and add the products in float32:
// AVX512_BF16, and AMX.
#pragma once

#include <cstdint>
#include <cstring>

#include "paged.h"
#include "tile.h"

#if defined(__AVX512BF16__)
#define POSENC_BFLOAT16_ROWS 1

namespace posenc {

// 2^x for x of at most 0, to 2^-18: more than bfloat16 keeps of it. 0 below -126, once it is kept in bfloat16.
inline Lanes power_of_two(Lanes x) {
  const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-127.0f), reinterpret_cast<__m512>(x));  // lets NaN through
  const Lanes rest = reinterpret_cast<Lanes>(_mm512_reduce_ps(bounded, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  Lanes p = Lanes{} + 1.342668973e-2f;  // least relative error on [0, 1], with p(0) = 1
  p = p * rest + 5.224246528e-2f;
  p = p * rest + 2.412802091e-1f;
  p = p * rest + 6.930448443e-1f;
  p = p * rest + 1.0f;
  return reinterpret_cast<Lanes>(_mm512_scalef_ps(reinterpret_cast<__m512>(p), bounded));
}

// Rows that are kept in bfloat16.
class BFloat16Rows {
 public:
  BFloat16Rows(int64_t rows, int64_t depth) : depth_(depth), numbers_(rows * depth) {}

  int64_t depth() const { return depth_; }

  // A row's numbers from `column` on.
  const uint16_t* at(int64_t row, int64_t column) const { return &numbers_[row * depth_ + column]; }

  // Takes all numbers of the first `rows` rows.
  void take(const float* numbers, int64_t rows) {
    for (int64_t i = 0; i < rows * depth_; i += kLanes) keep(load(numbers + i), &numbers_[i]);
  }

  // Takes the weights of a span: its scores, each times its row's factor, without their largest, raised from e. The
  // row's sum adds them as they are kept: what rounding changes is not taken for a part of the sum.
  void weigh(Softmax& softmax, const float* scores, int64_t stride, int64_t width, const float* factors) {
    softmax.weigh(width, [&](int64_t r) {
      return Weights{scores + r * stride, &numbers_[r * depth_], factors[r], factors[r] * kLog2OfE};
    });
  }

 private:
  static constexpr float kLog2OfE = 1.44269504088896341f;

  // A row of a span: see Softmax::InPlace.
  struct Weights {
    const float* scores;
    uint16_t* weights;
    float of_scores, of_powers;
    Lanes logits(int64_t column) const { return load(scores + column); }
    float factor() const { return of_scores; }
    Lanes exponential(Lanes logits, float largest) const {
      return power_of_two(logits * of_powers - largest * kLog2OfE);
    }
    Lanes keep(int64_t column, Lanes kept) const { return BFloat16Rows::keep(kept, weights + column); }
  };

  // Keeps 16 numbers, and returns them as they are kept.
  static Lanes keep(Lanes numbers, uint16_t* to) {
    const __m256bh narrow = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(numbers));
    std::memcpy(to, &narrow, sizeof narrow);
    const __m512i widened = _mm512_cvtepu16_epi32(reinterpret_cast<const __m256i&>(narrow));
    return reinterpret_cast<Lanes>(_mm512_slli_epi32(widened, 16));
  }

  int64_t depth_;
  Numbers<uint16_t> numbers_;  // [rows][depth]
};

}  // namespace posenc
#endif
