// A precision plan: how many bits of each shard's weights a token reads. A shard is what a plan sets as one: of every layer
// query and key, value and output, gate and up, down (of all its experts together), and the head. The rows of the embedding
// that a token takes in are read at the highest level whatever the plan.
//
// Plain data and pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weir::sched {

enum class Module : uint8_t { kQk, kVo, kGateUp, kDown };
constexpr size_t kModules = 4;
constexpr std::array<const char*, kModules> kModuleNames = {"qk", "vo", "gate_up", "down"};

// In the place of the head's bits: the passes of the plan leave the head out, and what computes their logits is no matter of
// the plan. No file has it.
constexpr uint8_t kNotRead = 0;

// Bits, ascending.
constexpr std::array<uint8_t, 5> kLevels = {2, 3, 4, 6, 8};
constexpr size_t kHighest = kLevels.size() - 1;  // its index

constexpr size_t shards_of(size_t n_layers) { return n_layers * kModules + 1; }
constexpr size_t shard_of(size_t layer, Module module) { return layer * kModules + static_cast<size_t>(module); }
constexpr size_t head_of(size_t n_layers) { return n_layers * kModules; }
// "layer 3 gate_up", "head"
std::string shard_name(size_t shard, size_t n_layers);

struct Plan {
    std::vector<uint8_t> levels;  // bits, by shard; the head comes last

    size_t n_layers() const { return levels.empty() ? 0 : (levels.size() - 1) / kModules; }
    // The level of all shards, where they have the same.
    std::optional<int> uniform() const;
    bool operator==(const Plan&) const = default;
};

Plan uniform_plan(size_t n_layers, int level);
// The plan with this level wherever it has a higher one.
Plan capped_plan(Plan plan, int level);

// As a file has it: {"layers": [{"qk": 8, "vo": 8, "gate_up": 4, "down": 4}, ...], "head": 6}
std::string plan_json(const Plan& plan);
// The same in results, where a level that all shards have stands for them, and null for no plan at all.
std::string precision_json(const Plan& plan);
// Throws std::runtime_error, one line that begins with `name`, for a text that is no plan of so many layers.
Plan read_plan(const std::string& text, size_t n_layers, const std::string& name);

}  // namespace weir::sched
