#include "schedtool/plan_memory.h"

#include <array>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <sstream>
#include <stdexcept>

namespace weir::sched {
namespace {

constexpr size_t kMostRung = 1000;
constexpr const char* kHeader = "weir plan memory 1";

// The finalizer of SplitMix64 (Steele, Lea & Flood 2014): every bit of the result depends on every bit of the number.
uint64_t mixed(uint64_t n) {
    n += 0x9e3779b97f4a7c15u;
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
    n = (n ^ n >> 27) * 0x94d049bb133111ebu;
    return n ^ n >> 31;
}

}  // namespace

// Each token votes for or against each bit, by its own random bits: sets of tokens that overlap agree in most.
uint64_t prompt_signature(std::span<const int32_t> ids) {
    std::array<int64_t, 64> votes = {};
    for (const int32_t id : ids) {
        const uint64_t bits = mixed(static_cast<uint32_t>(id));
        for (size_t b = 0; b < votes.size(); ++b) votes[b] += (bits >> b & 1) != 0 ? 1 : -1;
    }
    uint64_t signature = 0;
    for (size_t b = 0; b < votes.size(); ++b) signature |= static_cast<uint64_t>(votes[b] > 0) << b;
    return signature;
}

std::optional<size_t> PlanMemory::nearest(uint64_t signature) const {
    std::optional<size_t> best;
    int least = kNear;
    for (size_t i = 0; i < entries_.size(); ++i) {
        const int differ = std::popcount(entries_[i].signature ^ signature);
        if (differ > least) continue;
        least = differ;
        best = i;
    }
    return best;
}

std::optional<size_t> PlanMemory::find(uint64_t signature) const {
    const std::optional<size_t> at = nearest(signature);
    return at ? std::optional(entries_[*at].rung) : std::nullopt;
}

void PlanMemory::remember(uint64_t signature, size_t rung) {
    if (const std::optional<size_t> at = nearest(signature))
        entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(*at));
    while (entries_.size() >= capacity_) entries_.erase(entries_.begin());
    entries_.push_back({signature, rung});
}

std::string PlanMemory::text() const {
    std::string text = std::string(kHeader) + "\n";
    for (const Entry& entry : entries_) {
        char line[40];
        std::snprintf(line, sizeof line, "%016" PRIx64 " %zu\n", entry.signature, entry.rung);
        text += line;
    }
    return text;
}

PlanMemory PlanMemory::parse(const std::string& text, const std::string& name, size_t capacity) {
    const auto fail = [&](const std::string& why) { throw std::runtime_error(name + ": " + why); };
    std::istringstream in(text);
    std::string line;
    if (!std::getline(in, line) || line != kHeader) fail("is no plan memory; name another file, or remove it");
    PlanMemory memory(capacity);
    for (size_t number = 2; std::getline(in, line); ++number) {
        uint64_t signature = 0;
        size_t rung = 0;
        int end = 0;
        if (std::sscanf(line.c_str(), "%16" SCNx64 " %4zu%n", &signature, &rung, &end) != 2 ||
            static_cast<size_t>(end) != line.size() || rung > kMostRung)
            fail("line " + std::to_string(number) + " is no signature and rung");
        if (memory.entries_.size() == capacity) memory.entries_.erase(memory.entries_.begin());
        memory.entries_.push_back({signature, rung});
    }
    return memory;
}

}  // namespace weir::sched
