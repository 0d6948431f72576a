// Conversions between types of floating point, and from them to integers.
#include "machine.h"
#include <algorithm>
#include <cmath>

f32 half_to_f32(u16 bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    f32 size = exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp(f32(fraction), -24);
    if (exponent == 31) size = fraction ? NAN : INFINITY;
    return bits & 0x8000 ? -size : size;
}
u16 f32_to_half(f32 value) {
    if (value != value) return 0x7FFF;
    const u16 sign = u16(as_u32(value) >> 16 & 0x8000);
    const f64 size = std::fabs(f64(value));
    if (size >= 65520) return sign | 0x7C00;
    const int exponent = size == 0 ? -14 : std::max(std::ilogb(size), -14);
    const u32 steps = u32(std::nearbyint(std::ldexp(size, 10 - exponent)));  // of 2^-10 of the exponent's power
    return sign | u16(u32(exponent + 14) * 1024 + steps);                    // a normal number's leading bit carries
}
u16 f32_to_half_towards_zero(f32 value) {
    u16 bits = f32_to_half(value);
    if (value != value) return bits;
    if (std::fabs(half_to_f32(bits)) > std::fabs(value)) --bits;  // an infinity becomes the largest number
    return bits;
}
u16 f32_to_bfloat(f32 value) {
    if (value != value) return 0x7FFF;
    u32 bits = as_u32(value);
    return u16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
static u32 f32_to_tf32(f32 value) {  // to nearest, ties away from zero
    if (value != value) return 0x7FFFFFFF;
    return (as_u32(value) + 0x1000) & ~0x1FFFu;
}
// e4m3: to nearest, ties to even; past 448 the largest number; NaN stays one.
static u8 f32_to_e4m3(f32 value) {
    u8 sign = as_u32(value) >> 24 & 0x80;
    if (value != value) return 0x7F;
    f64 size = std::fabs(f64(value));
    if (size >= 448) return sign | 0x7E;
    int exponent = size == 0 ? -6 : std::max(std::ilogb(size), -6);
    u32 steps = u32(std::nearbyint(std::ldexp(size, 3 - exponent)));  // of an eighth of the exponent's power
    u32 code = u32(exponent + 6) * 8 + steps;  // a normal number's leading bit carries into the exponent
    return sign | u8(std::min(code, 0x7Eu));
}
static f32 e4m3_to_f32(u8 code) {
    if ((code & 0x7F) == 0x7F) return NAN;
    int exponent = code >> 3 & 15;
    f32 size = exponent ? std::ldexp(8.0f + (code & 7), exponent - 10) : std::ldexp(f32(code & 7), -9);
    return code & 0x80 ? -size : size;
}

UNARY("cvt.f32.f16", f32, u16, half_to_f32(a))
UNARY("cvt.rn.f16.f32", u16, f32, f32_to_half(a))
UNARY("cvt.rz.f16.f32", u16, f32, f32_to_half_towards_zero(a))
UNARY("cvt.f32.bf16", f32, u16, bfloat_to_f32(a))
UNARY("cvt.rn.bf16.f32", u16, f32, f32_to_bfloat(a))
UNARY("cvt.bf16.f16", u16, u16, f32_to_bfloat(half_to_f32(a)))
BINARY("cvt.rn.bf16x2.f32", u32, f32, f32, u32(f32_to_bfloat(a)) << 16 | f32_to_bfloat(b))
BINARY("cvt.rn.f16x2.f32", u32, f32, f32, u32(f32_to_half(a)) << 16 | f32_to_half(b))
UNARY("cvt.rna.tf32.f32", u32, f32, f32_to_tf32(a))
BINARY("cvt.rn.satfinite.e4m3x2.f32", u16, f32, f32, u16(f32_to_e4m3(a) << 8 | f32_to_e4m3(b)))
UNARY("cvt.rn.satfinite.e4m3x2.f16x2", u16, u32,
      u16(f32_to_e4m3(half_to_f32(u16(a >> 16))) << 8 | f32_to_e4m3(half_to_f32(u16(a)))))
UNARY("cvt.rn.f16x2.e4m3x2", u32, u16,
      u32(f32_to_half(e4m3_to_f32(u8(a >> 8)))) << 16 | f32_to_half(e4m3_to_f32(u8(a))))

static i32 whole(f32 a) {
    return a != a ? 0 : a >= 2147483648.0f ? INT32_MAX : a < -2147483648.0f ? INT32_MIN : i32(a);
}
UNARY("cvt.rzi.s32.f32", i32, f32, whole(a))
UNARY("cvt.rzi.ftz.s32.f32", i32, f32, whole(flushed(a)))
UNARY("cvt.rni.s32.f32", i32, f32, whole(std::nearbyint(a)))
UNARY("cvt.rni.ftz.s32.f32", i32, f32, whole(std::nearbyint(flushed(a))))
UNARY("cvt.rmi.f32.f32", f32, f32, std::floor(a))
UNARY("cvt.rmi.ftz.f32.f32", f32, f32, std::floor(flushed(a)))
UNARY("cvt.rpi.f32.f32", f32, f32, std::ceil(a))
UNARY("cvt.rzi.f32.f32", f32, f32, std::trunc(a))
