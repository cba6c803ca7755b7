#include "runtime/service/grammar.h"

#include <algorithm>
#include <bitset>
#include <string>

namespace weir {
namespace {

constexpr uint16_t kNoWay = UINT16_MAX;  // the height of what never ends

uint16_t above(uint16_t height) { return height == kNoWay ? kNoWay : static_cast<uint16_t>(height + 1); }

}  // namespace

Grammar::Grammar() {
    add({});
    add({.kind = Kind::kSplit, .next = 1, .other = 1});
}

Grammar::NodeId Grammar::add(Node node) {
    if (nodes_.size() == kMostNodes) throw GrammarError("it takes more than " + std::to_string(kMostNodes) + " states");
    nodes_.push_back(node);
    return static_cast<NodeId>(nodes_.size() - 1);
}

Grammar::NodeId Grammar::bytes(uint8_t low, uint8_t high, NodeId next) {
    return add({.kind = Kind::kBytes, .low = low, .high = high, .next = next});
}

Grammar::NodeId Grammar::literal(std::string_view text, NodeId next) {
    for (size_t i = text.size(); i-- > 0;)
        next = bytes(static_cast<uint8_t>(text[i]), static_cast<uint8_t>(text[i]), next);
    return next;
}

Grammar::NodeId Grammar::either(NodeId one, NodeId other) {
    if (one == nothing() || one == other) return other;
    if (other == nothing()) return one;
    return add({.kind = Kind::kSplit, .next = one, .other = other});
}

Grammar::NodeId Grammar::either(std::span<const NodeId> ways) {
    NodeId made = nothing();
    for (size_t i = ways.size(); i-- > 0;) made = either(ways[i], made);
    return made;
}

Grammar::NodeId Grammar::call(RuleId rule, NodeId next) {
    return add({.kind = Kind::kCall, .next = next, .other = rule});
}

Grammar::NodeId Grammar::repeat(RuleId rule, uint32_t least, uint32_t most, NodeId next) {
    if (most == 0) return next;
    return add({.kind = Kind::kRepeat, .next = next, .other = rule, .least = least, .most = most});
}

Grammar::RuleId Grammar::add_rule() {
    if (rules_.size() == kMostRules) throw GrammarError("it takes more than " + std::to_string(kMostRules) + " rules");
    rules_.push_back(nothing());
    return static_cast<RuleId>(rules_.size() - 1);
}

void Grammar::finish(RuleId root) {
    root_ = root;
    nodes_.shrink_to_fit();
    number_classes();
    measure_heights();
    const uint16_t height = nodes_[this->root()].height;
    if (height == kNoWay) throw GrammarError("there is nothing that it allows");
    if (height > kDeepest) throw GrammarError("it nests more than " + std::to_string(kDeepest) + " levels deep");
    refuse_empty_rules();
    refuse_left_recursion();
}

void Grammar::number_classes() {
    std::bitset<257> begins;
    for (const Node& node : nodes_) {
        if (node.kind != Kind::kBytes) continue;
        begins.set(node.low);
        begins.set(node.high + 1u);
    }
    uint8_t number = 0;
    for (size_t byte = 0; byte < 256; ++byte) {
        if (byte > 0 && begins[byte]) ++number;
        class_of_[byte] = number;
    }
    classes_ = number + 1u;
}

// From what is known to end, back to what leads there; a node's next has a smaller number, so that a pass settles a
// rule whose calls are settled.
void Grammar::measure_heights() {
    for (Node& node : nodes_) node.height = kNoWay;
    nodes_[end()].height = 0;
    for (bool changed = true; changed;) {
        changed = false;
        for (Node& node : nodes_) {
            const uint16_t next = nodes_[node.next].height;
            uint16_t height = next;
            switch (node.kind) {
                case Kind::kEnd: height = 0; break;
                case Kind::kBytes: break;
                case Kind::kSplit: height = std::min(next, nodes_[node.other].height); break;
                case Kind::kCall: height = std::max(next, above(nodes_[entry(node.other)].height)); break;
                case Kind::kRepeat:
                    if (node.least > 0) height = std::max(next, above(nodes_[entry(node.other)].height));
                    break;
            }
            if (height >= node.height) continue;
            node.height = height;
            changed = true;
        }
    }
}

// A rule that comes to itself before a byte has passed would be followed for ever.
void Grammar::refuse_left_recursion() const {
    enum Colour : uint8_t { kNew, kOpen, kDone };
    std::vector<uint8_t> colour(nodes_.size(), kNew);
    std::vector<std::pair<NodeId, uint8_t>> way;  // a node, and how many of its ways have been taken
    for (NodeId first = 0; first < nodes_.size(); ++first) {
        if (colour[first] != kNew || first == nothing()) continue;
        way.push_back({first, 0});
        colour[first] = kOpen;
        while (!way.empty()) {
            auto& [id, taken] = way.back();
            const Node& node = nodes_[id];
            NodeId to = nothing();
            if (node.kind == Kind::kSplit && taken < 2) {
                to = taken == 0 ? node.next : node.other;
            } else if (node.kind == Kind::kCall && taken < 1) {
                to = entry(node.other);
            } else if (node.kind == Kind::kRepeat && taken < 2) {
                to = taken == 0 ? entry(node.other) : node.least == 0 ? node.next : nothing();
            } else {
                colour[id] = kDone;
                way.pop_back();
                continue;
            }
            ++taken;
            if (to == nothing() || colour[to] == kDone) continue;
            if (colour[to] == kOpen) throw GrammarError("it refers to itself with nothing between");
            colour[to] = kOpen;
            way.push_back({to, 0});
        }
    }
}

// Whoever may be empty could be repeated for ever.
void Grammar::refuse_empty_rules() const {
    std::vector<bool> empty(nodes_.size(), false);  // the rule's end is there without a byte
    for (NodeId id = 0; id < nodes_.size(); ++id) {
        const Node& node = nodes_[id];
        const bool passes = node.kind == Kind::kSplit || (node.kind == Kind::kRepeat && node.least == 0);
        empty[id] =
            node.kind == Kind::kEnd || (passes && empty[node.next]) || (node.kind == Kind::kSplit && empty[node.other]);
    }
    for (const Node& node : nodes_) {
        const bool calls = node.kind == Kind::kCall || node.kind == Kind::kRepeat;
        if (calls && empty[entry(node.other)]) throw GrammarError("a part that others repeat or refer to may be empty");
    }
}

}  // namespace weir
