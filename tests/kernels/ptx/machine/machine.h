// A multiprocessor for PTX: its memory, its warps, and the table of what carries out each instruction.
//
// A warp's lanes run in lockstep, an instruction at a time; warps run on their own, each up to the next barrier, in a
// random order; programs run one after the other. Registers are arrays over the lanes, one after the other in a file
// for each warp. What is copied asynchronously arrives as late as it may. Tensor cores' results are there at once.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;
using f32 = float;
using f64 = double;

constexpr int LANES = 32;
constexpr u32 ALL = ~0u;
constexpr u32 SHARED_BASE = 1024;  // so that address 0 is nobody's
constexpr i32 NOBODY = -1, MANY = -2;
#define EACH_LANE _Pragma("GCC ivdep") for (int l = 0; l < LANES; ++l)

struct Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&, u32 mask);
enum Control { BRANCH, RETURN, BARRIER };  // the first number of an instruction without a handler

// One instruction. Registers are byte offsets into the file of the warp.
struct Instruction {
    Handler handler;
    const i32* registers;
    i32 guard;    // a predicate register, or -1
    i32 negated;  // whether it guards by being false
    i32 line;     // of the source, as an index into the caller's list
    i32 target;   // of a branch
    i64 immediates[4];
};

// What is known of a byte of global memory: which programs touched it.
struct GlobalShadow {
    i32 writer = NOBODY, reader = NOBODY;
    bool is_atomic = false;
};

// Of shared memory: which warps touched it since the last barrier, and what was copied there.
struct SharedShadow {
    bool is_written = false;
    u32 write_epoch = 0, read_epoch = 0;
    u32 writer = 0, readers = 0;  // a bit for each warp
    u64 source = 0;               // of an asynchronous copy
};

struct Allocation {
    u64 begin, size;
    std::vector<GlobalShadow> shadow;  // empty where it is too large to be watched
};

struct Copy {  // of cp.async, of one lane
    u32 target;
    u64 source;
    u32 bytes, given;  // what is not given becomes zero
};

struct Settings {
    u64 seed;  // 0: approximate instructions are exact
};

struct Machine;

struct Warp {
    Machine* machine;
    int index;
    u8* file;
    u32 live, active;  // lanes that have not exited; those that run at `place`
    int place, next;   // `next`: the lowest place at which other lanes wait
    int places[LANES];
    std::vector<std::vector<Copy>> copies;  // groups, the last not committed
    template <class T> T* at(i32 offset) { return reinterpret_cast<T*>(file + offset); }
    void run(const Instruction* program);
};

struct Machine {
    Settings settings;
    std::vector<Allocation> allocations;
    size_t last_allocation = 0;
    std::vector<u8> shared;
    std::vector<SharedShadow> shared_shadow;
    std::vector<Warp> warps;
    i32 program = 0;
    u32 epoch = 0;  // begins with every barrier and every program
    u64 random_state;
    std::vector<std::string> faults;
    std::set<std::pair<std::string, i32>> known;
    bool is_stopped = false;

    u64 random();
    // Note a fault, once for each line of the source. A stop ends the launch.
    void fault(const char* rule, const Instruction& i, bool stops = false);
    // Where memory of an access lies, or null after a fault; `what` is r, w or a, and noted for races.
    u8* global(const Instruction& i, u64 address, u32 bytes, char what);
    u8* shared_at(const Warp& w, const Instruction& i, u64 address, u32 bytes, bool writes);
    // Write, unless the same was written there since the last barrier: threads may hold the same twice.
    void write_shared(const Warp& w, const Instruction& i, u64 address, const void* data, u32 bytes, u64 source = 0);
};

std::map<std::string, Handler>& handlers();

struct Registration {
    Registration(const char* name, Handler handler) { handlers()[name] = handler; }
};
#define CONCATENATED_(a, b) a##b
#define CONCATENATED(a, b) CONCATENATED_(a, b)
#define OPCODE(name) static const Registration CONCATENATED(registration_, __COUNTER__) = Registration(name, 
#define END_OPCODE );

// Apply to all lanes of the mask, vectorised where that is all of them.
template <class D, class A, class F> inline void map1(Warp& w, const Instruction& i, u32 m, F f) {
    D* d = w.at<D>(i.registers[0]);
    const A* a = w.at<A>(i.registers[1]);
    if (m == ALL) EACH_LANE d[l] = f(a[l]);
    else for (int l = 0; l < LANES; ++l) if (m >> l & 1) d[l] = f(a[l]);
}
template <class D, class A, class B, class F> inline void map2(Warp& w, const Instruction& i, u32 m, F f) {
    D* d = w.at<D>(i.registers[0]);
    const A* a = w.at<A>(i.registers[1]);
    const B* b = w.at<B>(i.registers[2]);
    if (m == ALL) EACH_LANE d[l] = f(a[l], b[l]);
    else for (int l = 0; l < LANES; ++l) if (m >> l & 1) d[l] = f(a[l], b[l]);
}
template <class D, class A, class B, class C, class F> inline void map3(Warp& w, const Instruction& i, u32 m, F f) {
    D* d = w.at<D>(i.registers[0]);
    const A* a = w.at<A>(i.registers[1]);
    const B* b = w.at<B>(i.registers[2]);
    const C* c = w.at<C>(i.registers[3]);
    if (m == ALL) EACH_LANE d[l] = f(a[l], b[l], c[l]);
    else for (int l = 0; l < LANES; ++l) if (m >> l & 1) d[l] = f(a[l], b[l], c[l]);
}
#define UNARY(name, D, A, expression) \
    OPCODE(name)[](Warp& w, const Instruction& i, u32 m) { \
        map1<D, A>(w, i, m, [](A a) -> D { return expression; }); } END_OPCODE
#define BINARY(name, D, A, B, expression) \
    OPCODE(name)[](Warp& w, const Instruction& i, u32 m) { \
        map2<D, A, B>(w, i, m, [](A a, B b) -> D { return expression; }); } END_OPCODE
#define TERNARY(name, D, A, B, C, expression) \
    OPCODE(name)[](Warp& w, const Instruction& i, u32 m) { \
        map3<D, A, B, C>(w, i, m, [](A a, B b, C c) -> D { return expression; }); } END_OPCODE

inline f32 as_f32(u32 bits) { f32 value; memcpy(&value, &bits, 4); return value; }
inline u32 as_u32(f32 value) { u32 bits; memcpy(&bits, &value, 4); return bits; }
inline u64 as_u64(f64 value) { u64 bits; memcpy(&bits, &value, 8); return bits; }
inline f64 as_f64(u64 bits) { f64 value; memcpy(&value, &bits, 8); return value; }
inline f32 flushed(f32 value) {  // denormal numbers become zeros of their sign
    u32 bits = as_u32(value);
    return (bits & 0x7F800000u) ? value : as_f32(bits & 0x80000000u);
}
f32 half_to_f32(u16 bits);
u16 f32_to_half(f32 value);
u16 f32_to_half_towards_zero(f32 value);
inline f32 bfloat_to_f32(u16 bits) { return as_f32(u32(bits) << 16); }
u16 f32_to_bfloat(f32 value);
