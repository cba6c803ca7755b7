// A language of byte strings, as a network of nodes that calls itself: what a constrained answer may be. Rules may
// call rules, so that it holds what JSON is; counted repetitions cost one node, whatever they count to.
//
// Built from the end to the front: a node is made with the one that follows it. finish() then refuses what cannot be
// walked in bounded time and memory. Immutable afterwards; any thread may read it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace weir {

// The grammar is too large, or has no words, or calls itself without an end. What it was made from is at fault.
struct GrammarError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Grammar {
  public:
    using NodeId = uint32_t;
    using RuleId = uint32_t;
    static constexpr uint32_t kUnlimited = UINT32_MAX;
    // 1.5 MiB of nodes: a list of thousands of words. Rules are few.
    static constexpr size_t kMostNodes = 1 << 16;
    static constexpr size_t kMostRules = 1 << 12;
    // Calls within calls that a walk follows; a value of JSON within another takes two or three.
    static constexpr uint32_t kDeepest = 128;

    enum class Kind : uint8_t { kEnd, kBytes, kSplit, kCall, kRepeat };
    struct Node {
        Kind kind = Kind::kEnd;
        uint8_t low = 0, high = 0;  // kBytes: those from low to high
        uint16_t height = 0;        // calls within calls on the shortest way to the end; set by finish()
        NodeId next = 0;            // what follows; kSplit: one way
        uint32_t other = 0;         // kSplit: the other way; kCall, kRepeat: the rule
        uint32_t least = 0, most = 0;  // kRepeat
    };

    Grammar();

    NodeId end() const { return 0; }  // of any rule
    NodeId nothing() const { return 1; }  // no word goes on from here
    NodeId bytes(uint8_t low, uint8_t high, NodeId next);
    NodeId literal(std::string_view text, NodeId next);
    NodeId either(NodeId one, NodeId other);
    NodeId either(std::span<const NodeId> ways);
    NodeId call(RuleId rule, NodeId next);
    // The rule's words must not be empty.
    NodeId repeat(RuleId rule, uint32_t least, uint32_t most, NodeId next);
    RuleId add_rule();
    void set_rule(RuleId rule, NodeId entry) { rules_[rule] = entry; }

    // The language is that of this rule. Throws GrammarError.
    void finish(RuleId root);

    static constexpr size_t most_bytes() { return kMostNodes * sizeof(Node) + kMostRules * sizeof(NodeId); }

    const Node& node(NodeId id) const { return nodes_[id]; }
    NodeId entry(RuleId rule) const { return rules_[rule]; }
    NodeId root() const { return rules_[root_]; }
    // Bytes of one class are the same to every node.
    size_t classes() const { return classes_; }
    size_t class_of(uint8_t byte) const { return class_of_[byte]; }

  private:
    NodeId add(Node node);
    void number_classes();
    void measure_heights();
    void refuse_empty_rules() const;
    void refuse_left_recursion() const;

    std::vector<Node> nodes_;
    std::vector<NodeId> rules_;  // where each begins
    RuleId root_ = 0;
    std::array<uint8_t, 256> class_of_{};
    size_t classes_ = 1;
};

}  // namespace weir
