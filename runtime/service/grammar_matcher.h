// Where an answer stands in a Grammar, and which bytes may follow: all ways of reading it at once, as a set of heads.
// Sets and steps between them are kept, so that a step that was taken before costs one look: most steps, inside of a
// string, are.
//
// Memory is bounded: what is kept is dropped when there is much of it, but for the sets on the way that is walked. No
// head is ever followed to where its rule cannot end within Grammar::kDeepest calls: what is allowed can always be
// finished.
//
// One per answer, one thread at a time. Throws GrammarError where one byte can be read in too many ways at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/model/hash_index.h"
#include "runtime/service/grammar.h"

namespace weir {

class GrammarMatcher {
  public:
    explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);

    // The answer may end here; and there is nothing else that it may do.
    bool may_end() const { return sets_[way_[0]].ends; }
    bool must_end() const { return may_end() && sets_[way_[0]].heads == 0; }

    // Goes on by these bytes. False, and nothing is changed, where they are not allowed.
    bool advance(std::string_view bytes);

    // A walk ahead: whether `byte` may follow the depth bytes that were last looked at, one after the other.
    bool look(size_t depth, uint8_t byte);

    // Where it stands, as a number: the same for the same place until generation() changes.
    uint32_t place() const { return way_[0]; }
    uint32_t generation() const { return generation_; }

    // Work done, in heads followed; whoever walks ahead bounds it.
    uint64_t work() const { return work_; }

    // What it takes, about, at most; without the grammar.
    static size_t most_bytes();

  private:
    // A call under way: the node that the rule returns to, how often a repetition has been through, and who called.
    struct Frame {
        uint32_t node, count, caller, depth;
        bool operator==(const Frame&) const = default;
    };
    struct Head {
        uint32_t node;   // of the kind kBytes
        uint32_t frame;
        auto operator<=>(const Head&) const = default;
    };
    struct HeadSet {
        uint32_t first, heads;  // in heads_
        bool ends;
    };
    struct Item {
        uint32_t node, count, frame;
    };

    void clear();
    void make_room(size_t depth);
    uint32_t step(uint32_t set, uint8_t byte);
    void follow();
    uint32_t frame_of(const Frame& frame);
    uint32_t set_of_found();

    const std::shared_ptr<const Grammar> grammar_;
    const size_t many_sets_;
    std::vector<uint32_t> way_;  // sets: here, and after each byte that was looked at
    std::vector<Frame> frames_;
    std::vector<Head> heads_;    // of all sets
    std::vector<HeadSet> sets_;
    std::vector<uint32_t> steps_;  // [sets, classes]
    HashIndex frame_index_, set_index_;
    std::vector<Item> todo_;     // what follow() works on, and what it finds
    std::vector<Head> found_;
    bool found_end_ = false;
    uint32_t generation_ = 0;
    uint64_t work_ = 0;
};

}  // namespace weir
