// Floating point: what IEEE 754 says, and what NVIDIA says of instructions that are approximate.
#include "machine.h"
#include <algorithm>
#include <cmath>

static const f32 NAN_OF_GPU = as_f32(0x7FFFFFFFu);

// With and without flushing of denormal numbers, of what goes in and of what comes out.
#define FLOAT_UNARY(name, expression) \
    UNARY(name ".f32", f32, f32, expression) \
    OPCODE(name ".ftz.f32")[](Warp& w, const Instruction& i, u32 m) { \
        map1<f32, f32>(w, i, m, [](f32 a) -> f32 { a = flushed(a); return flushed(expression); }); } END_OPCODE
#define FLOAT_BINARY(name, expression) \
    BINARY(name ".f32", f32, f32, f32, expression) \
    OPCODE(name ".ftz.f32")[](Warp& w, const Instruction& i, u32 m) { \
        map2<f32, f32, f32>(w, i, m, [](f32 a, f32 b) -> f32 { \
            a = flushed(a), b = flushed(b); return flushed(expression); }); } END_OPCODE
#define FLOAT_TERNARY(name, expression) \
    TERNARY(name ".f32", f32, f32, f32, f32, expression) \
    OPCODE(name ".ftz.f32")[](Warp& w, const Instruction& i, u32 m) { \
        map3<f32, f32, f32, f32>(w, i, m, [](f32 a, f32 b, f32 c) -> f32 { \
            a = flushed(a), b = flushed(b), c = flushed(c); return flushed(expression); }); } END_OPCODE

FLOAT_BINARY("add", a + b)
FLOAT_BINARY("sub", a - b)
FLOAT_BINARY("mul", a * b)
FLOAT_TERNARY("fma.rn", std::fma(a, b, c))
FLOAT_UNARY("neg", -a)
FLOAT_UNARY("abs", std::fabs(a))
FLOAT_BINARY("div.rn", a / b)
FLOAT_UNARY("sqrt.rn", std::sqrt(a))
FLOAT_UNARY("rcp.rn", 1.0f / a)
FLOAT_BINARY("max", a != a ? b : b != b ? a : a > b ? a : a < b ? b : std::signbit(a) ? b : a)
FLOAT_BINARY("min", a != a ? b : b != b ? a : a < b ? a : a > b ? b : std::signbit(a) ? a : b)
FLOAT_BINARY("max.NaN", a != a || b != b ? NAN_OF_GPU : a > b ? a : a < b ? b : std::signbit(a) ? b : a)
FLOAT_BINARY("min.NaN", a != a || b != b ? NAN_OF_GPU : a < b ? a : a > b ? b : std::signbit(a) ? a : b)
BINARY("min.NaN.xorsign.abs.f32", f32, f32, f32,
       a != a || b != b
           ? NAN_OF_GPU
           : as_f32(as_u32(std::min(std::fabs(a), std::fabs(b))) | ((as_u32(a) ^ as_u32(b)) & 0x80000000u)))
UNARY("mov.f32", f32, f32, a)

#define COMPARED(name, expression) \
    BINARY("setp." name ".f32", u8, f32, f32, expression) \
    OPCODE("setp." name ".ftz.f32")[](Warp& w, const Instruction& i, u32 m) { \
        map2<u8, f32, f32>(w, i, m, [](f32 a, f32 b) -> u8 { a = flushed(a), b = flushed(b); return expression; }); } \
        END_OPCODE
COMPARED("eq", a == b)
COMPARED("ne", a < b || a > b)
COMPARED("lt", a < b)
COMPARED("le", a <= b)
COMPARED("gt", a > b)
COMPARED("ge", a >= b)
COMPARED("equ", !(a < b || a > b))
COMPARED("neu", a != b)
COMPARED("ltu", !(a >= b))
COMPARED("leu", !(a > b))
COMPARED("gtu", !(a <= b))
COMPARED("geu", !(a < b))
COMPARED("num", a == a && b == b)
COMPARED("nan", a != a || b != b)

// Approximations: the exact result, rounded, and moved by as many units of the last place as are allowed, up or down by
// a hash of what went in: the same operands always have the same result, as on a device.
static f32 moved(f32 exact, f32 a, f32 b, int units, const Settings& settings) {
    if (!settings.seed || !std::isnormal(exact)) return exact;
    u32 hash = (as_u32(a) * 0x9E3779B1u ^ as_u32(b) * 0x85EBCA77u) + u32(settings.seed) * 0xC2B2AE3Du;
    hash ^= hash >> 15, hash *= 0x2C1B3C6Du, hash ^= hash >> 12;
    return as_f32(as_u32(exact) + u32(i32(hash % u32(2 * units + 1)) - units));
}
// Exact where an application may count on it: of powers of two.
#define APPROXIMATE(name, flushes, units, is_exact, expression) \
    OPCODE(name)[](Warp& w, const Instruction& i, u32 m) { \
        f32 *d = w.at<f32>(i.registers[0]), *x = w.at<f32>(i.registers[1]); \
        for (int l = 0; l < LANES; ++l) if (m >> l & 1) { \
            f32 a = flushes ? flushed(x[l]) : x[l]; \
            f32 exact = f32(expression); \
            f32 found = (is_exact) ? exact : moved(exact, a, 0, units, w.machine->settings); \
            d[l] = flushes ? flushed(found) : found; \
        } } END_OPCODE
static bool is_power_of_two(f32 a) { return (as_u32(a) & 0x7FFFFFu) == 0; }
APPROXIMATE("ex2.approx.ftz.f32", true, 2, a == std::floor(a), std::exp2(f64(a)))
APPROXIMATE("ex2.approx.f32", false, 2, a == std::floor(a), std::exp2(f64(a)))
APPROXIMATE("lg2.approx.ftz.f32", true, 2, is_power_of_two(a), std::log2(f64(a)))
APPROXIMATE("lg2.approx.f32", false, 2, is_power_of_two(a), std::log2(f64(a)))
APPROXIMATE("rcp.approx.ftz.f32", true, 1, is_power_of_two(a), 1.0 / f64(a))
APPROXIMATE("sqrt.approx.ftz.f32", true, 1, false, std::sqrt(f64(a)))
APPROXIMATE("sqrt.approx.f32", false, 1, false, std::sqrt(f64(a)))
APPROXIMATE("rsqrt.approx.ftz.f32", true, 2, false, 1.0 / std::sqrt(f64(a)))
#define DIVISION(name, flushes) \
    OPCODE(name)[](Warp& w, const Instruction& i, u32 m) { \
        f32 *d = w.at<f32>(i.registers[0]), *x = w.at<f32>(i.registers[1]), *y = w.at<f32>(i.registers[2]); \
        for (int l = 0; l < LANES; ++l) if (m >> l & 1) { \
            f32 a = flushes ? flushed(x[l]) : x[l], b = flushes ? flushed(y[l]) : y[l]; \
            f32 found = is_power_of_two(b) ? a / b : moved(a / b, a, b, 2, w.machine->settings); \
            d[l] = flushes ? flushed(found) : found; \
        } } END_OPCODE
DIVISION("div.full.f32", false)
DIVISION("div.full.ftz.f32", true)
