// Products of matrices, and how their parts lie in registers and in shared memory (PTX ISA, "Matrix Fragments for
// mma.m16n8k16", "Warpgroup-level matrix instructions").
#include "machine.h"

enum Kind { TF32, BFLOAT16, FLOAT16 };

static f32 tf32(u32 bits) { return as_f32(bits & ~0x1FFFu); }
static f32 element(int kind, u16 bits) { return kind == BFLOAT16 ? bfloat_to_f32(bits) : half_to_f32(bits); }

// The first factor, 16 rows of 8 (TF32) or 16 columns, from four registers.
static void first_factor(Warp& w, const i32* registers, int kind, f32 a[16][16]) {
    for (int l = 0; l < LANES; ++l) {
        for (int n = 0; n < 4; ++n) {
            const u32 bits = w.at<u32>(registers[n])[l];
            const int row = l / 4 + 8 * (n & 1), half = n >> 1;
            if (kind == TF32) {
                a[row][l % 4 + 4 * half] = tf32(bits);
            } else {
                const int column = 2 * (l % 4) + 8 * half;
                a[row][column] = element(kind, u16(bits)), a[row][column + 1] = element(kind, u16(bits >> 16));
            }
        }
    }
}

// Registers: four sums, four of the first factor, two of the second, four of what is added.
template <int kind> static void product(Warp& w, const Instruction& i, u32 m) {
    if (m != ALL) w.machine->fault("multiplies matrices with some lanes only", i);
    constexpr int K = kind == TF32 ? 8 : 16;
    f32 a[16][16], b[16][8], sums[4][LANES];
    first_factor(w, i.registers + 4, kind, a);
    for (int l = 0; l < LANES; ++l) {
        for (int n = 0; n < 2; ++n) {
            const u32 bits = w.at<u32>(i.registers[8 + n])[l];
            if (kind == TF32) {
                b[l % 4 + 4 * n][l / 4] = tf32(bits);
            } else {
                const int row = 2 * (l % 4) + 8 * n;
                b[row][l / 4] = element(kind, u16(bits)), b[row + 1][l / 4] = element(kind, u16(bits >> 16));
            }
        }
    }
    for (int l = 0; l < LANES; ++l) {
        for (int n = 0; n < 4; ++n) {
            const int row = l / 4 + 8 * (n >> 1), column = 2 * (l % 4) + (n & 1);
            f64 sum = w.at<f32>(i.registers[10 + n])[l];
            for (int k = 0; k < K; ++k) sum += f64(a[row][k]) * b[k][column];
            sums[n][l] = f32(sum);
        }
    }
    for (int n = 0; n < 4; ++n) memcpy(w.at<f32>(i.registers[n]), sums[n], sizeof sums[n]);
}
OPCODE("mma.tf32") product<TF32> END_OPCODE
OPCODE("mma.bf16") product<BFLOAT16> END_OPCODE
OPCODE("mma.f16") product<FLOAT16> END_OPCODE

// Matrices of 8 by 8 of two bytes. Registers: the values, the address. Immediates: matrices, transposed, an offset.
template <bool stores> static void matrices(Warp& w, const Instruction& i, u32) {
    const int n = int(i.immediates[0]);
    const bool is_transposed = i.immediates[1];
    for (int matrix = 0; matrix < n; ++matrix) {
        u8* rows[8];
        for (int row = 0; row < 8; ++row) {
            const u64 address = w.at<u32>(i.registers[n])[8 * matrix + row] + i.immediates[2];
            if (!(rows[row] = w.machine->shared_at(w, i, address, 16, stores))) return;
        }
        for (int l = 0; l < LANES; ++l) {
            u16 halves[2];
            u32& value = w.at<u32>(i.registers[matrix])[l];
            memcpy(halves, &value, sizeof halves);
            for (int half = 0; half < 2; ++half) {
                const int inner = 2 * (l % 4) + half;
                u8* place = is_transposed ? rows[inner] + 2 * (l / 4) : rows[l / 4] + 2 * inner;
                if (stores) memcpy(place, &halves[half], 2);
                else memcpy(&halves[half], place, 2);
            }
            if (!stores) memcpy(&value, halves, sizeof halves);
        }
    }
}
OPCODE("ldmatrix") matrices<false> END_OPCODE
OPCODE("stmatrix") matrices<true> END_OPCODE

// Where an element lies that a descriptor of shared memory describes; `outer` counts rows, or columns, of the result.
static u64 place_of(u64 descriptor, int outer, int inner, int size, bool is_transposed) {
    const u64 start = (descriptor & 0x3FFF) << 4, leading = (descriptor >> 16 & 0x3FFF) << 4;
    const u64 stride = (descriptor >> 32 & 0x3FFF) << 4;
    const int mode = int(descriptor >> 62);  // of swizzling
    const u64 width = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 16;
    const u64 swizzled = mode == 1 ? 7 : mode == 2 ? 3 : mode == 3 ? 1 : 0;
    u64 address;
    if (is_transposed) {
        const int across = int(width) / size;
        address = start + outer / across * leading + outer % across * size + inner / 8 * stride + inner % 8 * width;
    } else {
        const u64 along = u64(inner) * size;
        address = start + outer / 8 * stride + outer % 8 * width + (mode ? along : along / 16 * leading + along % 16);
    }
    return address ^ (address >> 7 & swizzled) << 4;
}

// Of four warps, each with its own sixteen rows. Registers: sums, the first factor's or its descriptor, the second's
// descriptor, whether sums are added to. Immediates: columns, kind, and flags: the first factor lies in memory, the
// second is transposed, the first is.
OPCODE("wgmma")[](Warp& w, const Instruction& i, u32 m) {
    if (m != ALL) w.machine->fault("multiplies matrices with some lanes only", i);
    const int N = int(i.immediates[0]), kind = int(i.immediates[1]), flags = int(i.immediates[2]);
    const int K = kind == TF32 ? 8 : 16, size = kind == TF32 ? 4 : 2;
    auto read = [&](u64 address) -> f32 {
        const u8* place = w.machine->shared_at(w, i, address, size, false);
        if (!place) return 0;
        u32 bits = 0;
        memcpy(&bits, place, size);
        return kind == TF32 ? tf32(bits) : element(kind, u16(bits));
    };
    const i32* registers = i.registers + N / 2;
    f32 a[16][16];
    if (flags & 1) {
        const u64 first = w.at<u64>(*registers++)[0];
        for (int row = 0; row < 16; ++row)
            for (int k = 0; k < K; ++k) a[row][k] = read(place_of(first, w.index % 4 * 16 + row, k, size, flags & 4));
    } else {
        first_factor(w, registers, kind, a);
        registers += 4;
    }
    const u64 second = w.at<u64>(registers[0])[0];
    const bool adds = w.at<u8>(registers[1])[0];
    std::vector<f32> b(K * N);
    for (int column = 0; column < N; ++column)
        for (int k = 0; k < K; ++k) b[k * N + column] = read(place_of(second, column, k, size, flags & 2));
    for (int l = 0; l < LANES; ++l) {
        for (int n = 0; n < N / 2; ++n) {
            const int row = l / 4 + 8 * (n >> 1 & 1), column = 8 * (n / 4) + 2 * (l % 4) + (n & 1);
            f32& result = w.at<f32>(i.registers[n])[l];
            f64 sum = adds ? result : 0;
            for (int k = 0; k < K; ++k) sum += f64(a[row][k]) * b[k * N + column];
            result = f32(sum);
        }
    }
} END_OPCODE
