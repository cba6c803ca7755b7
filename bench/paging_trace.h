// What a run touches, token after token, for comparing paging policies without a model: read from a file, or made up.
//
// The walk of a token visits places in order. A dense place is a number of Extents that every token touches, one after
// the other; a place of groups is a choice, of which each use touches a few together (the experts of a layer).
//
// The file, one thing a line, `#` begins a comment:
//     weir-trace 1
//     unit 2097152            bytes of a unit, in which sizes and budgets count
//     place dense 6           6 Extents of one unit each
//     place groups 64 2       64 groups of 2 units each
//     token                   a token begins
//     hint 1 5 9              groups 5 and 9 of place 1 are expected (places count from 0, groups from 0 in each place)
//     use 1 5 9 33            groups 5, 9 and 33 of place 1 are used together
//     cancel 1 12             group 12 of place 1 is no longer expected
// Dense places are not written again: the walk touches them on its way to the next used place, or to the token's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

namespace weir::bench {

struct Place {
    bool dense;
    uint32_t first;  // item
    uint32_t count;
    uint32_t units;  // of each item
};

struct Event {
    enum Kind : uint8_t {
        kToken,   // a token begins
        kUse,     // items[0 .. n) of `items` are touched, and in use together
        kHint,
        kCancel,
    };
    Kind kind;
    uint32_t first = 0;  // into Trace::items
    uint32_t count = 0;
};

struct Trace {
    std::string name;
    uint64_t unit_bytes = 0;
    std::vector<Place> places;
    std::vector<Event> events;    // dense touches written out, one item an event
    std::vector<uint32_t> items;  // that events name; an item is an Extent of a dense place, or a group

    const Place& place_of(uint32_t item) const;
    size_t n_items() const { return places.empty() ? 0 : places.back().first + places.back().count; }
    uint64_t total_units() const;
    size_t n_tokens() const;
};

// Throws std::runtime_error with the line's number.
Trace read_trace(std::istream& in, std::string name);
void write_trace(const Trace& trace, std::ostream& out);

// Every token touches all n Extents in order.
Trace make_cyclic(size_t n, size_t tokens);

struct ExpertShape {
    size_t layers = 16;
    size_t experts = 64;      // per layer
    size_t used = 8;          // by a token
    size_t units = 1;         // of an expert
    size_t dense_units = 0;   // per layer, touched by every token before the layer's experts
    size_t tokens = 256;
    double skew = 0;          // Zipf's exponent: 0 is uniform
    double drift = 0;         // chance that two experts of a layer trade their popularity, per token
    double repeat = 0;        // chance that an expert of the token before is used again, before the rest is drawn
    double right_hints = 0;   // chance that a hint names what is then used, and not a near miss; 0: no hints
    uint64_t seed = 1;
};

// The same trace for the same shape on every machine.
Trace make_experts(std::string name, const ExpertShape& shape);

// The made-up traces that policies are compared on, by name: cycles, experts of several skews, with drift, with repetition,
// with hints, and dense Extents and experts in one walk. Throws std::runtime_error for another name.
std::vector<std::string> synthetic_names();
Trace make_synthetic(const std::string& name);

}  // namespace weir::bench
