// How programs, warps and lanes take turns, and what a launch is.
#include "machine.h"
#include <algorithm>
#include <numeric>

constexpr u64 WATCHED = 64u << 20;  // bytes of an allocation, at most
constexpr int NO_PLACE = INT32_MAX;

std::map<std::string, Handler>& handlers() {
    static std::map<std::string, Handler> found;
    return found;
}

u64 Machine::random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

void Machine::fault(const char* rule, const Instruction& i, bool stops) {
    if (known.insert({rule, i.line}).second) faults.push_back(std::string(rule) + " @" + std::to_string(i.line));
    is_stopped = is_stopped || stops;
}

// Run up to the next barrier, or to the end. Lanes that part run one after the other, those furthest behind first.
void Warp::run(const Instruction* program) {
    while (live && !machine->is_stopped) {
        place = next = NO_PLACE;
        for (int l = 0; l < LANES; ++l)
            if (live >> l & 1) place = std::min(place, places[l]);
        active = 0;
        for (int l = 0; l < LANES; ++l) {
            if (!(live >> l & 1)) continue;
            if (places[l] == place) active |= 1u << l;
            else next = std::min(next, places[l]);
        }
        for (bool together = true; together && !machine->is_stopped;) {
            const Instruction& i = program[place];
            u32 runs = active;
            if (i.guard >= 0) {
                const u8* guard = at<u8>(i.guard);
                for (int l = 0; l < LANES; ++l)
                    if ((guard[l] != 0) == (i.negated != 0)) runs &= ~(1u << l);
            }
            const int after = place + 1;
            auto go_on = [&](u32 lanes, int to) {
                for (int l = 0; l < LANES; ++l)
                    if (lanes >> l & 1) places[l] = to;
            };
            if (i.handler) {
                if (runs) i.handler(*this, i, runs);
                place = after;
            } else if (i.immediates[0] == BRANCH && (runs == active || !runs)) {
                place = runs ? i.target : after;
            } else if (i.immediates[0] == BRANCH) {
                go_on(active, after), go_on(runs, i.target);
                break;
            } else if (i.immediates[0] == RETURN) {
                live &= ~runs;
                go_on(active, after);
                break;
            } else {
                if (active != live) machine->fault("not all lanes come to a barrier", i, true);
                go_on(active, after);
                return;
            }
            if (place >= next) {
                go_on(active, place);
                together = false;
            }
        }
    }
}

struct Number {
    i32 offset, size;
    u64 value;
};

static void begin(Warp& w, const Number* numbers, i32 num_numbers, const i32* special, const u32* values) {
    for (int n = 0; n < num_numbers; ++n)
        for (int l = 0; l < LANES; ++l)
            memcpy(w.file + numbers[n].offset + l * numbers[n].size, &numbers[n].value, numbers[n].size);
    for (int l = 0; l < LANES; ++l) {
        const u32 of_lane[8] = {u32(w.index * LANES + l), values[0], values[1], values[2],
                                values[3],                values[4], values[5], u32(l)};
        for (int n = 0; n < 8; ++n)
            if (special[n] >= 0) w.at<u32>(special[n])[l] = of_lane[n];
    }
}

static void shuffle(std::vector<i64>& order, Machine& m) {
    for (size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[m.random() % n]);
}

extern "C" Handler find_handler(const char* name) {
    auto found = handlers().find(name);
    return found == handlers().end() ? nullptr : found->second;
}

// Run all programs; gives a line for each fault: the rule, and the number of the source's line.
extern "C" const char* run_launch(const Instruction* program, i32 file_size, const Number* numbers, i32 num_numbers,
                                  const i32* special, const i32* grid, i32 num_warps, i32 shared_bytes,
                                  const u64* memory, i32 num_allocations, u64 seed, i32 program_order, i32 poison) {
    Machine m;
    m.settings = {seed};
    m.random_state = seed * 77777 + 88172645463325252ull;
    for (int n = 0; n < num_allocations; ++n) {
        const u64 size = memory[2 * n + 1];
        m.allocations.push_back({memory[2 * n], size, std::vector<GlobalShadow>(size <= WATCHED ? size : 0)});
    }
    std::vector<u8> files(size_t(file_size) * num_warps);
    std::vector<i64> programs(i64(grid[0]) * grid[1] * grid[2]), order(num_warps);
    std::iota(programs.begin(), programs.end(), 0);
    std::iota(order.begin(), order.end(), 0);
    if (program_order == 1) std::reverse(programs.begin(), programs.end());
    if (program_order == 2) shuffle(programs, m);
    for (i64 number : programs) {
        m.program = i32(number);
        m.shared.assign(shared_bytes, u8(poison));
        m.shared_shadow.assign(shared_bytes, {});
        m.warps.assign(num_warps, {});
        memset(files.data(), poison, files.size());
        const u32 values[6] = {u32(number % grid[0]), u32(number / grid[0] % grid[1]), u32(number / grid[0] / grid[1]),
                               u32(grid[0]), u32(grid[1]), u32(grid[2])};
        for (int n = 0; n < num_warps; ++n) {
            Warp& w = m.warps[n];
            w.machine = &m, w.index = n, w.file = files.data() + size_t(n) * file_size, w.live = ALL;
            w.copies.resize(1);
            begin(w, numbers, num_numbers, special, values);
        }
        auto is_live = [](const Warp& w) { return w.live != 0; };
        while (!m.is_stopped && std::any_of(m.warps.begin(), m.warps.end(), is_live)) {
            ++m.epoch;
            shuffle(order, m);
            for (i64 n : order) m.warps[n].run(program);
        }
        if (m.is_stopped) break;
    }
    static std::string said;
    said.clear();
    for (auto& fault : m.faults) said += fault + "\n";
    return said.c_str();
}
