#include "bench/paging_trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace weir::bench {
namespace {

// Bounds on what a file may ask for: a million items and 16 million touches fit any machine that replays them.
constexpr uint64_t kMaxItems = 1u << 20;
constexpr uint64_t kMaxUnits = 1u << 16;
constexpr uint64_t kMaxTouches = 1u << 24;

// Adds events to a trace, and the dense places that the walk passes on its way.
class Walk {
  public:
    explicit Walk(Trace* trace) : trace_(trace) {}

    void add_place(bool dense, uint32_t count, uint32_t units) {
        trace_->places.push_back({dense, static_cast<uint32_t>(trace_->n_items()), count, units});
    }
    void token() {
        end();
        trace_->events.push_back({Event::kToken});
        next_ = 0;
    }
    // groups: numbers within the place.
    void use(size_t place, const std::vector<uint32_t>& groups) {
        if (place < next_) next_ = place;  // used again: the walk goes on from there
        pass(place);
        next_ = place + 1;
        add(Event::kUse, place, groups);
    }
    void add(Event::Kind kind, size_t place, const std::vector<uint32_t>& groups) {
        trace_->events.push_back(
            {kind, static_cast<uint32_t>(trace_->items.size()), static_cast<uint32_t>(groups.size())});
        for (const uint32_t g : groups) trace_->items.push_back(trace_->places[place].first + g);
    }
    // The walk goes on to the token's end.
    void end() {
        if (!trace_->events.empty()) pass(trace_->places.size());
    }

  private:
    void pass(size_t to) {
        for (; next_ < to; ++next_) {
            const Place& p = trace_->places[next_];
            if (!p.dense) continue;
            for (uint32_t i = 0; i < p.count; ++i) add(Event::kUse, next_, {i});
        }
    }

    Trace* trace_;
    size_t next_ = 0;  // place
};

class Parser {
  public:
    Parser(std::istream& in, Trace* trace) : in_(in), trace_(trace), walk_(trace) {}

    void parse() {
        if (!next_line() || words_ != std::vector<std::string>{"weir-trace", "1"})
            fail("a trace begins with \"weir-trace 1\"");
        while (next_line()) line();
        if (trace_->places.empty()) fail("no place");
        if (!in_token_) fail("no token");
        walk_.end();
    }

  private:
    bool next_line() {
        std::string text;
        while (std::getline(in_, text)) {
            ++number_;
            std::istringstream stream(text.substr(0, text.find('#')));
            words_.clear();
            for (std::string word; stream >> word;) words_.push_back(std::move(word));
            if (!words_.empty()) return true;
        }
        return false;
    }

    [[noreturn]] void fail(const std::string& what) const {
        throw std::runtime_error(trace_->name + ":" + std::to_string(number_) + ": " + what);
    }

    uint64_t value(size_t i, uint64_t least, uint64_t most) const {
        if (i >= words_.size()) fail(words_[0] + ": a number is missing");
        uint64_t v = 0;
        const std::string& w = words_[i];
        const auto [end, error] = std::from_chars(w.data(), w.data() + w.size(), v);
        if (error != std::errc() || end != w.data() + w.size() || v < least || v > most)
            fail(words_[0] + ": \"" + w + "\" is not a number from " + std::to_string(least) + " to " + std::to_string(most));
        return v;
    }

    void expect_words(size_t n) const {
        if (words_.size() != n) fail(words_[0] + ": " + std::to_string(n) + " words are expected");
    }

    void line() {
        const std::string& word = words_[0];
        if (word == "unit") {
            expect_words(2);
            trace_->unit_bytes = value(1, 1, uint64_t{1} << 40);
        } else if (word == "place") {
            place();
        } else if (word == "token") {
            expect_words(1);
            if (trace_->unit_bytes == 0 || trace_->places.empty()) fail("unit and places come before the first token");
            in_token_ = true;
            walk_.token();
        } else if (word == "use" || word == "hint" || word == "cancel") {
            groups(word == "use" ? Event::kUse : word == "hint" ? Event::kHint : Event::kCancel);
        } else {
            fail("\"" + word + "\" is not known here");
        }
        if (trace_->items.size() > kMaxTouches) fail("more than " + std::to_string(kMaxTouches) + " touches");
    }

    void place() {
        if (in_token_) fail("places come before the first token");
        const bool dense = words_.size() > 1 && words_[1] == "dense";
        if (!dense && (words_.size() < 2 || words_[1] != "groups")) fail("a place is dense or groups");
        expect_words(dense ? 3 : 4);
        const uint64_t left = kMaxItems - trace_->n_items();
        const auto count = static_cast<uint32_t>(value(2, 1, left));
        walk_.add_place(dense, count, dense ? 1 : static_cast<uint32_t>(value(3, 1, kMaxUnits)));
    }

    void groups(Event::Kind kind) {
        if (!in_token_) fail("a token comes first");
        const size_t place = value(1, 0, trace_->places.size() - 1);
        if (trace_->places[place].dense) fail("place " + words_[1] + " is dense: it is touched by itself");
        std::vector<uint32_t> list;
        for (size_t i = 2; i < words_.size(); ++i)
            list.push_back(static_cast<uint32_t>(value(i, 0, trace_->places[place].count - 1)));
        if (kind == Event::kUse)
            walk_.use(place, list);
        else
            walk_.add(kind, place, list);
    }

    std::istream& in_;
    Trace* trace_;
    Walk walk_;
    std::vector<std::string> words_;
    size_t number_ = 0;
    bool in_token_ = false;
};

// std's distributions differ between libraries; a trace must not.
class Random {
  public:
    explicit Random(uint64_t seed) : engine_(seed) {}
    double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }
    size_t below(size_t n) { return static_cast<size_t>(uniform() * static_cast<double>(n)); }
    bool chance(double p) { return p > 0 && uniform() < p; }

  private:
    std::mt19937_64 engine_;
};

// Which experts one layer's tokens use.
class Router {
  public:
    Router(const ExpertShape& shape, Random* random) : shape_(shape), random_(random), rank_(shape.experts) {
        std::iota(rank_.begin(), rank_.end(), 0);
        for (size_t i = rank_.size(); i > 1; --i) std::swap(rank_[i - 1], rank_[random_->below(i)]);
    }

    const std::vector<uint32_t>& next() {
        if (random_->chance(shape_.drift)) std::swap(rank_[random_->below(rank_.size())], rank_[random_->below(rank_.size())]);
        std::vector<uint32_t> kept;
        for (const uint32_t e : used_)
            if (random_->chance(shape_.repeat)) kept.push_back(e);
        used_ = kept;
        // Drawn without replacement by weights w: the largest log(u) / w are taken (Efraimidis and Spirakis, 2006).
        std::vector<std::pair<double, uint32_t>> keys;
        for (uint32_t e = 0; e < rank_.size(); ++e) {
            const double weight = std::pow(rank_[e] + 1, -shape_.skew);
            if (std::find(kept.begin(), kept.end(), e) == kept.end())
                keys.emplace_back(std::log(random_->uniform()) / weight, e);
        }
        const size_t missing = shape_.used - used_.size();
        const size_t sorted = std::min(keys.size(), missing + shape_.used);
        std::partial_sort(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(sorted), keys.end(), std::greater<>());
        near_.clear();
        for (size_t i = 0; i < sorted; ++i) (i < missing ? used_ : near_).push_back(keys[i].second);
        return used_;
    }

    // Those that came next, the nearest first: what a wrong guess would be. As many as are used, or as there are.
    const std::vector<uint32_t>& near_misses() const { return near_; }

  private:
    const ExpertShape& shape_;
    Random* random_;
    std::vector<uint32_t> rank_;  // of each expert; 0 is the most popular
    std::vector<uint32_t> used_;
    std::vector<uint32_t> near_;
};

}  // namespace

const Place& Trace::place_of(uint32_t item) const {
    return *(std::upper_bound(places.begin(), places.end(), item,
                              [](uint32_t i, const Place& p) { return i < p.first; }) - 1);
}

uint64_t Trace::total_units() const {
    uint64_t units = 0;
    for (const Place& p : places) units += uint64_t{p.count} * p.units;
    return units;
}

size_t Trace::n_tokens() const {
    return static_cast<size_t>(
        std::count_if(events.begin(), events.end(), [](const Event& e) { return e.kind == Event::kToken; }));
}

Trace read_trace(std::istream& in, std::string name) {
    Trace trace;
    trace.name = std::move(name);
    Parser(in, &trace).parse();
    return trace;
}

void write_trace(const Trace& trace, std::ostream& out) {
    out << "weir-trace 1\nunit " << trace.unit_bytes << '\n';
    for (const Place& p : trace.places) {
        if (p.dense)
            out << "place dense " << p.count << '\n';
        else
            out << "place groups " << p.count << ' ' << p.units << '\n';
    }
    for (const Event& e : trace.events) {
        if (e.kind == Event::kToken) {
            out << "token\n";
            continue;
        }
        if (e.count == 0) continue;
        const Place& place = trace.place_of(trace.items[e.first]);
        if (place.dense) continue;
        out << (e.kind == Event::kUse ? "use " : e.kind == Event::kHint ? "hint " : "cancel ") << &place - trace.places.data();
        for (uint32_t i = 0; i < e.count; ++i) out << ' ' << trace.items[e.first + i] - place.first;
        out << '\n';
    }
}

Trace make_cyclic(size_t n, size_t tokens) {
    Trace trace;
    trace.name = "cyclic-" + std::to_string(n);
    trace.unit_bytes = 2u << 20;
    Walk walk(&trace);
    walk.add_place(true, static_cast<uint32_t>(n), 1);
    for (size_t t = 0; t < tokens; ++t) walk.token();
    walk.end();
    return trace;
}

Trace make_experts(std::string name, const ExpertShape& shape) {
    Trace trace;
    trace.name = std::move(name);
    trace.unit_bytes = 2u << 20;
    Walk walk(&trace);
    Random random(shape.seed);
    std::vector<Router> routers;
    std::vector<size_t> place_of;
    for (size_t l = 0; l < shape.layers; ++l) {
        if (shape.dense_units > 0) walk.add_place(true, static_cast<uint32_t>(shape.dense_units), 1);
        place_of.push_back(trace.places.size());
        walk.add_place(false, static_cast<uint32_t>(shape.experts), static_cast<uint32_t>(shape.units));
        routers.emplace_back(shape, &random);
    }
    for (size_t t = 0; t < shape.tokens; ++t) {
        walk.token();
        for (size_t l = 0; l < shape.layers; ++l) {
            const std::vector<uint32_t>& used = routers[l].next();
            std::vector<uint32_t> wrong;
            if (shape.right_hints > 0) {
                std::vector<uint32_t> hints;
                for (const uint32_t e : used) {
                    const std::vector<uint32_t>& near = routers[l].near_misses();
                    if (random.chance(shape.right_hints) || wrong.size() == near.size())
                        hints.push_back(e);
                    else
                        wrong.push_back(near[wrong.size()]);
                }
                hints.insert(hints.end(), wrong.begin(), wrong.end());
                walk.add(Event::kHint, place_of[l], hints);
            }
            walk.use(place_of[l], used);
            if (!wrong.empty()) walk.add(Event::kCancel, place_of[l], wrong);
        }
    }
    walk.end();
    return trace;
}

namespace {

// 240, 950 and 3,700 Extents of 2 MiB: half a GB, a 3B and a 13B model at 4 bits.
constexpr struct {
    const char* name;
    size_t extents;
} kCycles[] = {{"cyclic-240", 240}, {"cyclic-950", 950}, {"cyclic-3700", 3700}};

constexpr struct {
    const char* name;
    ExpertShape shape;
} kExperts[] = {
    {"uniform", {}},
    {"zipf-0.6", {.skew = 0.6}},
    {"zipf-1.0", {.skew = 1.0}},
    {"zipf-1.4", {.skew = 1.4}},
    {"zipf-1.0-drift", {.tokens = 512, .skew = 1.0, .drift = 0.2}},
    {"zipf-1.0-repeat", {.skew = 1.0, .repeat = 0.3}},
    {"zipf-1.0-hints", {.skew = 1.0, .right_hints = 0.8}},
    {"many-experts", {.layers = 24, .experts = 128, .tokens = 128, .skew = 0.8, .repeat = 0.1}},
    {"mixed-uniform", {.units = 2, .dense_units = 6}},
    {"mixed-1.0", {.units = 2, .dense_units = 6, .skew = 1.0}},
    {"mixed-1.0-drift", {.units = 2, .dense_units = 6, .tokens = 512, .skew = 1.0, .drift = 0.2, .repeat = 0.1}},
};

}  // namespace

std::vector<std::string> synthetic_names() {
    std::vector<std::string> names;
    for (const auto& c : kCycles) names.emplace_back(c.name);
    for (const auto& e : kExperts) names.emplace_back(e.name);
    return names;
}

Trace make_synthetic(const std::string& name) {
    constexpr size_t kCycleTokens = 8;
    for (const auto& c : kCycles)
        if (name == c.name) return make_cyclic(c.extents, kCycleTokens);
    for (const auto& e : kExperts)
        if (name == e.name) return make_experts(name, e.shape);
    throw std::runtime_error("no synthetic trace is called " + name);
}

}  // namespace weir::bench
