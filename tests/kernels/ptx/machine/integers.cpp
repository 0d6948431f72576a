// Integers, bits and predicates.
#include "machine.h"
#include <algorithm>

#define INTEGER_OF(suffix, T, U) \
    BINARY("add." suffix, U, U, U, a + b) \
    BINARY("sub." suffix, U, U, U, a - b) \
    BINARY("mul.lo." suffix, U, U, U, U(u64(a) * u64(b))) \
    TERNARY("mad.lo." suffix, U, U, U, U, U(u64(a) * u64(b) + u64(c))) \
    BINARY("min." suffix, T, T, T, std::min(a, b)) \
    BINARY("max." suffix, T, T, T, std::max(a, b)) \
    BINARY("div." suffix, T, T, T, b == 0 ? T(-1) : (T(-1) < 0 && b == T(-1)) ? T(U(0) - U(a)) : T(a / b)) \
    BINARY("rem." suffix, T, T, T, b == 0 ? a : (T(-1) < 0 && b == T(-1)) ? T(0) : T(a % b)) \
    UNARY("neg." suffix, U, U, U(0) - a) \
    UNARY("abs." suffix, T, T, a < 0 ? T(U(0) - U(a)) : a) \
    BINARY("shr." suffix, T, T, u32, b >= sizeof(T) * 8 ? (a < 0 ? T(-1) : T(0)) : T(a >> b)) \
    BINARY("setp.eq." suffix, u8, T, T, a == b) \
    BINARY("setp.ne." suffix, u8, T, T, a != b) \
    BINARY("setp.lt." suffix, u8, T, T, a < b) \
    BINARY("setp.le." suffix, u8, T, T, a <= b) \
    BINARY("setp.gt." suffix, u8, T, T, a > b) \
    BINARY("setp.ge." suffix, u8, T, T, a >= b)
INTEGER_OF("s16", i16, u16)
INTEGER_OF("u16", u16, u16)
INTEGER_OF("s32", i32, u32)
INTEGER_OF("u32", u32, u32)
INTEGER_OF("s64", i64, u64)
INTEGER_OF("u64", u64, u64)

#define WIDE(suffix, T, W) \
    BINARY("mul.wide." suffix, W, T, T, W(a) * W(b)) \
    TERNARY("mad.wide." suffix, W, T, T, W, W(a) * W(b) + c)
WIDE("s16", i16, i32)
WIDE("u16", u16, u32)
WIDE("s32", i32, i64)
WIDE("u32", u32, u64)
BINARY("mul.hi.s16", i16, i16, i16, i16(i32(a) * i32(b) >> 16))
BINARY("mul.hi.u16", u16, u16, u16, u16(u32(a) * u32(b) >> 16))
BINARY("mul.hi.s32", i32, i32, i32, i32(i64(a) * i64(b) >> 32))
BINARY("mul.hi.u32", u32, u32, u32, u32(u64(a) * u64(b) >> 32))
BINARY("mul.hi.s64", i64, i64, i64, i64(__int128(a) * __int128(b) >> 64))
BINARY("mul.hi.u64", u64, u64, u64, u64((unsigned __int128)(a) * b >> 64))

#define BITS_OF(suffix, U) \
    BINARY("and." suffix, U, U, U, a & b) \
    BINARY("or." suffix, U, U, U, a | b) \
    BINARY("xor." suffix, U, U, U, a ^ b) \
    TERNARY("selp." suffix, U, U, U, u8, c ? a : b) \
    UNARY("mov." suffix, U, U, a)
BITS_OF("pred", u8)
BITS_OF("b16", u16)
BITS_OF("b32", u32)
BITS_OF("b64", u64)
UNARY("not.pred", u8, u8, !a)
#define SHIFTED(suffix, U) \
    UNARY("not." suffix, U, U, U(~a)) \
    BINARY("shl." suffix, U, U, u32, b >= sizeof(U) * 8 ? U(0) : U(a << b)) \
    BINARY("setp.eq." suffix, u8, U, U, a == b) \
    BINARY("setp.ne." suffix, u8, U, U, a != b)
SHIFTED("b16", u16)
SHIFTED("b32", u32)
SHIFTED("b64", u64)

static u32 low_bits(u32 count) { return count >= 32 ? ~0u : (1u << count) - 1; }
TERNARY("bfe.u32", u32, u32, u32, u32, ((b & 255) > 31 ? 0u : a >> (b & 255)) & low_bits(c & 255))
static i32 field(i32 a, u32 begin, u32 length) {
    begin &= 255, length &= 255;
    if (length == 0) return 0;
    u32 last = std::min(begin + length - 1, 31u);
    u32 sign = u32(a) >> last & 1;
    u32 bits = begin > 31 ? 0 : u32(a) >> begin;
    u32 kept = low_bits(std::min(length, begin > 31 ? 0 : 32 - begin));
    return i32((bits & kept) | (sign ? ~kept : 0u));
}
TERNARY("bfe.s32", i32, i32, u32, u32, field(a, b, c))

static u32 permuted(u32 a, u32 b, u32 selector) {
    u64 both = u64(b) << 32 | a;
    u32 found = 0;
    for (int place = 0; place < 4; ++place) {
        u32 choice = selector >> (4 * place) & 15;
        u8 byte = u8(both >> (8 * (choice & 7)));
        if (choice & 8) byte = byte & 0x80 ? 0xFF : 0;
        found |= u32(byte) << (8 * place);
    }
    return found;
}
TERNARY("prmt.b32", u32, u32, u32, u32, permuted(a, b, c))
// A bit of the table for each of the eight that bits of a, b and c can be.
OPCODE("lop3.b32")[](Warp& w, const Instruction& i, u32 m) {
    const u32* table = w.at<u32>(i.registers[4]);
    map3<u32, u32, u32, u32>(w, i, m, [table](u32 a, u32 b, u32 c) -> u32 {
        u32 found = 0;
        for (u32 each = 0; each < 8; ++each)
            if (*table >> each & 1) found |= (each & 4 ? a : ~a) & (each & 2 ? b : ~b) & (each & 1 ? c : ~c);
        return found; }); } END_OPCODE
UNARY("popc.b32", u32, u32, u32(__builtin_popcount(a)))
UNARY("clz.b32", u32, u32, a ? u32(__builtin_clz(a)) : 32u)

// Packing and unpacking: {low, high} of halves and of words.
OPCODE("pack.b32")[](Warp& w, const Instruction& i, u32 m) {
    map2<u32, u16, u16>(w, i, m, [](u16 a, u16 b) -> u32 { return a | u32(b) << 16; }); } END_OPCODE
OPCODE("pack.b64")[](Warp& w, const Instruction& i, u32 m) {
    map2<u64, u32, u32>(w, i, m, [](u32 a, u32 b) -> u64 { return a | u64(b) << 32; }); } END_OPCODE
template <class Half, class Whole> static void unpack(Warp& w, const Instruction& i, u32 m) {
    Whole whole[LANES];
    memcpy(whole, w.at<Whole>(i.registers[2]), sizeof whole);
    Half *low = w.at<Half>(i.registers[0]), *high = w.at<Half>(i.registers[1]);
    for (int l = 0; l < LANES; ++l)
        if (m >> l & 1) low[l] = Half(whole[l]), high[l] = Half(whole[l] >> 8 * sizeof(Half));
}
OPCODE("unpack.b32") unpack<u16, u32> END_OPCODE
OPCODE("unpack.b64") unpack<u32, u64> END_OPCODE

#define CONVERTED(D, A, d, a) UNARY("cvt." d "." a, D, A, D(a))
#define TO_ALL(A, name) \
    UNARY("cvt.u16." name, u16, A, u16(a)) UNARY("cvt.s16." name, i16, A, i16(a)) \
    UNARY("cvt.u32." name, u32, A, u32(a)) UNARY("cvt.s32." name, i32, A, i32(a)) \
    UNARY("cvt.u64." name, u64, A, u64(a)) UNARY("cvt.s64." name, i64, A, i64(a)) \
    UNARY("cvt.rn.f32." name, f32, A, f32(a))
TO_ALL(u16, "u16")
TO_ALL(i16, "s16")
TO_ALL(u32, "u32")
TO_ALL(i32, "s32")
TO_ALL(u64, "u64")
TO_ALL(i64, "s64")
