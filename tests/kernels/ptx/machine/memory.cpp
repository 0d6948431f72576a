// Global and shared memory: loads, stores, asynchronous copies, atomics, and what is passed from lane to lane.
#include "machine.h"
#include <algorithm>

u8* Machine::global(const Instruction& i, u64 address, u32 bytes, char what) {
    auto holds = [&](const Allocation& a) { return address >= a.begin && address + bytes <= a.begin + a.size; };
    if (!holds(allocations[last_allocation])) {
        auto found = std::find_if(allocations.begin(), allocations.end(), holds);
        if (found == allocations.end()) {
            fault("out of bounds of all tensors", i, true);
            return nullptr;
        }
        last_allocation = size_t(found - allocations.begin());
    }
    if (address % bytes) fault("misaligned", i);
    Allocation& a = allocations[last_allocation];
    for (u32 b = 0; b < bytes && !a.shadow.empty(); ++b) {
        GlobalShadow& s = a.shadow[address - a.begin + b];
        const bool is_others = s.writer != NOBODY && s.writer != program;
        if (what == 'r') {
            if (is_others && !s.is_atomic) fault("reads what another program wrote", i);
            s.reader = s.reader == NOBODY || s.reader == program ? program : MANY;
            continue;
        }
        if (is_others && !(what == 'a' && s.is_atomic)) fault("writes what another program wrote", i);
        if (s.reader != NOBODY && s.reader != program && what != 'a') fault("writes what another program reads", i);
        s.writer = program, s.is_atomic = what == 'a';
    }
    return reinterpret_cast<u8*>(address);
}

u8* Machine::shared_at(const Warp& w, const Instruction& i, u64 address, u32 bytes, bool writes) {
    if (address < SHARED_BASE || address + bytes > SHARED_BASE + shared.size()) {
        fault("out of bounds of shared memory", i, true);
        return nullptr;
    }
    if (address % std::min(bytes, 16u)) fault("misaligned in shared memory", i);
    const u32 own = 1u << w.index;
    for (u32 b = 0; b < bytes; ++b) {
        SharedShadow& s = shared_shadow[address - SHARED_BASE + b];
        const bool is_others = s.write_epoch == epoch && s.writer != own;
        if (s.read_epoch != epoch) s.read_epoch = epoch, s.readers = 0;
        if (writes) {
            if (is_others) fault("writes what another warp writes without a barrier between", i);
            if (s.readers & ~own) fault("writes what another warp reads without a barrier between", i);
            s.is_written = true, s.write_epoch = epoch, s.writer = own, s.source = 0;
        } else {
            if (is_others) fault("reads what another warp writes without a barrier between", i);
            if (!s.is_written) fault("reads shared memory that nobody wrote", i);
            s.readers |= own;
        }
    }
    return shared.data() + (address - SHARED_BASE);
}

void Machine::write_shared(const Warp& w, const Instruction& i, u64 address, const void* data, u32 bytes, u64 source) {
    if (address >= SHARED_BASE && address + bytes <= SHARED_BASE + shared.size()) {
        const SharedShadow& s = shared_shadow[address - SHARED_BASE];
        const bool is_same = source ? s.source == source : !memcmp(data, &shared[address - SHARED_BASE], bytes);
        if (is_same && s.write_epoch == epoch) return;
    }
    u8* place = shared_at(w, i, address, bytes, true);
    if (!place) return;
    memcpy(place, data, bytes);
    for (u32 b = 0; b < bytes; ++b) shared_shadow[address - SHARED_BASE + b].source = source;
}

// Registers: the values, the address. Immediates: bytes of an element, elements, an offset, and bytes of a register,
// negative where it takes a sign.
template <bool is_shared> static u64 address_of(Warp& w, const Instruction& i, int l) {
    const i32 place = i.registers[i.immediates[1]];
    return (is_shared ? u64(w.at<u32>(place)[l]) : w.at<u64>(place)[l]) + i.immediates[2];
}
template <bool is_shared> static void load(Warp& w, const Instruction& i, u32 m) {
    const int size = int(i.immediates[0]), n = int(i.immediates[1]), wide = int(std::abs(i.immediates[3]));
    for (int l = 0; l < LANES; ++l) {
        if (!(m >> l & 1)) continue;
        const u64 address = address_of<is_shared>(w, i, l);
        const u8* from = is_shared ? w.machine->shared_at(w, i, address, size * n, false)
                                   : w.machine->global(i, address, size * n, 'r');
        if (!from) return;
        for (int e = 0; e < n; ++e) {
            if (i.registers[e] < 0) continue;
            u64 value = 0;
            memcpy(&value, from + e * size, size);
            if (i.immediates[3] < 0 && size < 8 && value >> (8 * size - 1) & 1) value |= ~u64(0) << 8 * size;
            memcpy(w.file + i.registers[e] + l * wide, &value, wide);
        }
    }
}
template <bool is_shared> static void store(Warp& w, const Instruction& i, u32 m) {
    const int size = int(i.immediates[0]), n = int(i.immediates[1]), wide = int(std::abs(i.immediates[3]));
    for (int l = 0; l < LANES; ++l) {
        if (!(m >> l & 1)) continue;
        u8 values[32];
        for (int e = 0; e < n; ++e) memcpy(values + e * size, w.file + i.registers[e] + l * wide, size);
        const u64 address = address_of<is_shared>(w, i, l);
        if (is_shared) {
            w.machine->write_shared(w, i, address, values, size * n);
        } else {
            u8* to = w.machine->global(i, address, size * n, 'w');
            if (!to) return;
            memcpy(to, values, size * n);
        }
    }
}
OPCODE("ld.global") load<false> END_OPCODE
OPCODE("ld.shared") load<true> END_OPCODE
OPCODE("st.global") store<false> END_OPCODE
OPCODE("st.shared") store<true> END_OPCODE

// Registers: shared address, global address, bytes that are given. Immediates: bytes, and the addresses' offsets.
// From its beginning on nobody may touch what is copied to; until it is waited for, there is nothing sensible there.
OPCODE("cp.async")[](Warp& w, const Instruction& i, u32 m) {
    static const u8 NOTHING[16] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    for (int l = 0; l < LANES; ++l) {
        if (!(m >> l & 1)) continue;
        const Copy copy{u32(w.at<u32>(i.registers[0])[l] + i.immediates[1]),
                        w.at<u64>(i.registers[1])[l] + i.immediates[2], u32(i.immediates[0]),
                        w.at<u32>(i.registers[2])[l]};
        if (copy.given && !w.machine->global(i, copy.source, copy.bytes, 'r')) return;
        w.machine->write_shared(w, i, copy.target, NOTHING, copy.bytes, copy.given ? copy.source : 1);
        w.copies.back().push_back(copy);
    }
} END_OPCODE
OPCODE("cp.async.commit_group")[](Warp& w, const Instruction&, u32) { w.copies.emplace_back(); } END_OPCODE
OPCODE("cp.async.wait_group")[](Warp& w, const Instruction& i, u32) {
    while (i64(w.copies.size()) - 1 > i.immediates[0]) {
        for (const Copy& copy : w.copies.front()) {
            u8 values[16] = {};
            memcpy(values, reinterpret_cast<u8*>(copy.source), copy.given);
            memcpy(&w.machine->shared[copy.target - SHARED_BASE], values, copy.bytes);
            for (u32 b = 0; b < copy.bytes; ++b)
                w.machine->shared_shadow[copy.target - SHARED_BASE + b].write_epoch = w.machine->epoch;
        }
        w.copies.erase(w.copies.begin());
    }
} END_OPCODE

template <class T> static void atomic_add(Warp& w, const Instruction& i, u32 m) {
    for (int l = 0; l < LANES; ++l) {
        if (!(m >> l & 1)) continue;
        u8* place = w.machine->global(i, w.at<u64>(i.registers[1])[l] + i.immediates[0], sizeof(T), 'a');
        if (!place) return;
        T old;
        memcpy(&old, place, sizeof old);
        const T sum = old + w.at<T>(i.registers[2])[l];
        memcpy(place, &sum, sizeof sum);
        w.at<T>(i.registers[0])[l] = old;
    }
}
OPCODE("atom.add.u32") atomic_add<u32> END_OPCODE
OPCODE("atom.add.u64") atomic_add<u64> END_OPCODE
OPCODE("nop")[](Warp&, const Instruction&, u32) {} END_OPCODE

// Registers: result, value, lane or distance, and the bounds as PTX packs them. Immediate: which lane is asked.
OPCODE("shfl")[](Warp& w, const Instruction& i, u32 m) {
    enum { BUTTERFLY, INDEX, UP, DOWN };
    u32 values[LANES];
    memcpy(values, w.at<u32>(i.registers[1]), sizeof values);
    for (int l = 0; l < LANES; ++l) {
        if (!(m >> l & 1)) continue;
        const int b = w.at<u32>(i.registers[2])[l] & 31;
        const u32 packed = w.at<u32>(i.registers[3])[l], bound = packed & 31, segment = packed >> 8 & 31;
        const int furthest = (l & segment) | (bound & ~segment);
        int asked = i.immediates[0] == UP ? l - b : i.immediates[0] == DOWN ? l + b : l ^ b;
        if (i.immediates[0] == INDEX) asked = (l & segment) | (b & ~segment);
        if (i.immediates[0] == UP ? asked < furthest : asked > furthest) asked = l;
        if (!(m >> asked & 1)) w.machine->fault("asks a lane that does not take part", i);
        w.at<u32>(i.registers[0])[l] = values[asked];
    }
} END_OPCODE
OPCODE("redux.add")[](Warp& w, const Instruction& i, u32 m) {
    u32 sum = 0;
    for (int l = 0; l < LANES; ++l)
        if (m >> l & 1) sum += w.at<u32>(i.registers[1])[l];
    for (int l = 0; l < LANES; ++l)
        if (m >> l & 1) w.at<u32>(i.registers[0])[l] = sum;
} END_OPCODE
OPCODE("redux.max")[](Warp& w, const Instruction& i, u32 m) {
    i32 largest = INT32_MIN;
    for (int l = 0; l < LANES; ++l)
        if (m >> l & 1) largest = std::max(largest, w.at<i32>(i.registers[1])[l]);
    for (int l = 0; l < LANES; ++l)
        if (m >> l & 1) w.at<i32>(i.registers[0])[l] = largest;
} END_OPCODE
