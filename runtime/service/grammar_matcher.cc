#include "runtime/service/grammar_matcher.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

// What is kept before it is dropped: 600 KiB in all. A walk inside a string comes through a hundred sets of a dozen
// heads.
constexpr size_t kManySteps = 1 << 16;  // sets times classes of bytes
constexpr size_t kManyHeads = 1 << 14;
constexpr size_t kManyFrames = 1 << 12;  // twice as many in the middle of a step
// Ways of reading one answer, and what may be looked at to find those that follow a byte.
constexpr size_t kMostHeads = 1 << 10;
constexpr size_t kMostItems = 1 << 14;

constexpr uint32_t kUnknown = UINT32_MAX;
constexpr uint32_t kDead = 0;  // the set of no heads
constexpr uint32_t kTop = 0;   // the frame that nobody called

uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

[[noreturn]] void too_ambiguous() {
    throw GrammarError("the schema can be read in too many ways at once: make its alternatives differ sooner");
}

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), many_sets_(kManySteps / grammar_->classes()), frame_index_(0), set_index_(0) {
    clear();
    todo_.push_back({grammar_->root(), 0, kTop});
    follow();
    way_.push_back(set_of_found());
}

size_t GrammarMatcher::most_bytes() {
    const size_t kept = kManySteps * sizeof(uint32_t) + (kManyHeads + kMostHeads) * sizeof(Head) +
                        2 * kManyFrames * sizeof(Frame) + kManySteps / 16 * sizeof(HeadSet);
    return kept + kept / 2;  // room that vectors have left, and indexes
}

void GrammarMatcher::clear() {
    frames_.clear();
    heads_.clear();
    sets_.clear();
    steps_.clear();
    frame_index_ = HashIndex(2 * kManyFrames);
    set_index_ = HashIndex(many_sets_ + 2);
    frames_.push_back({});
    found_.clear();
    found_end_ = false;
    set_of_found();  // kDead
    ++generation_;
}

// Drops all but the sets of the way, up to `depth`, where there is much.
void GrammarMatcher::make_room(size_t depth) {
    if (sets_.size() < many_sets_ && heads_.size() < kManyHeads && frames_.size() < kManyFrames) return;
    const std::vector<Frame> frames = frames_;
    const std::vector<Head> heads = heads_;
    const std::vector<HeadSet> sets = sets_;
    clear();
    std::vector<uint32_t> moved(frames.size(), kUnknown);
    moved[kTop] = kTop;
    // A caller is older than whom it calls.
    const auto move = [&](uint32_t frame) {
        std::vector<uint32_t> callers;
        for (; moved[frame] == kUnknown; frame = frames[frame].caller) callers.push_back(frame);
        for (size_t i = callers.size(); i-- > 0;) {
            Frame kept = frames[callers[i]];
            kept.caller = moved[kept.caller];
            moved[callers[i]] = frame_of(kept);
        }
    };
    for (size_t i = 0; i <= depth; ++i) {
        const HeadSet& set = sets[way_[i]];
        found_.assign(heads.begin() + set.first, heads.begin() + set.first + set.heads);
        for (Head& head : found_) {
            move(head.frame);
            head.frame = moved[head.frame];
        }
        found_end_ = set.ends;
        way_[i] = set_of_found();
    }
    if (sets_.size() >= many_sets_ || heads_.size() >= kManyHeads || frames_.size() >= kManyFrames) too_ambiguous();
}

bool GrammarMatcher::look(size_t depth, uint8_t byte) {
    make_room(depth);
    const uint32_t to = step(way_[depth], byte);
    if (way_.size() < depth + 2) way_.resize(depth + 2);
    way_[depth + 1] = to;
    return to != kDead;
}

bool GrammarMatcher::advance(std::string_view bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
        if (!look(i, static_cast<uint8_t>(bytes[i]))) return false;
    }
    way_[0] = way_[bytes.size()];
    return true;
}

uint32_t GrammarMatcher::step(uint32_t set, uint8_t byte) {
    const size_t at = set * grammar_->classes() + grammar_->class_of(byte);
    if (steps_[at] != kUnknown) return steps_[at];
    found_.clear();
    found_end_ = false;
    for (uint32_t i = 0; i < sets_[set].heads; ++i) {
        const Head head = heads_[sets_[set].first + i];
        const Grammar::Node& node = grammar_->node(head.node);
        ++work_;
        if (byte >= node.low && byte <= node.high) todo_.push_back({node.next, 0, head.frame});
    }
    follow();
    const uint32_t to = set_of_found();
    steps_[at] = to;
    return to;
}

// From what is to do to the heads that it leads to without a byte.
void GrammarMatcher::follow() {
    using Kind = Grammar::Kind;
    size_t items = 0;
    while (!todo_.empty()) {
        const Item item = todo_.back();
        todo_.pop_back();
        ++work_;
        if (++items > kMostItems || todo_.size() > kMostItems || found_.size() > 2 * kMostHeads) {
            todo_.clear();
            too_ambiguous();
        }
        const Grammar::Node& node = grammar_->node(item.node);
        const uint32_t depth = frames_[item.frame].depth;
        if (node.height > Grammar::kDeepest - depth) continue;
        const auto enter = [&](uint32_t back, uint32_t count) {
            if (depth == Grammar::kDeepest) return;
            todo_.push_back({grammar_->entry(node.other), 0, frame_of({back, count, item.frame, depth + 1})});
        };
        switch (node.kind) {
            case Kind::kBytes: found_.push_back({item.node, item.frame}); break;
            case Kind::kSplit:
                todo_.push_back({node.other, 0, item.frame});
                todo_.push_back({node.next, 0, item.frame});
                break;
            case Kind::kCall: enter(node.next, 0); break;
            case Kind::kRepeat:
                if (item.count >= node.least) todo_.push_back({node.next, 0, item.frame});
                // Where there is no limit, having been through often enough is all that counts.
                if (node.most == Grammar::kUnlimited) {
                    enter(item.node, std::min(item.count + 1, node.least));
                } else if (item.count < node.most) {
                    enter(item.node, item.count + 1);
                }
                break;
            case Kind::kEnd:
                if (item.frame == kTop) {
                    found_end_ = true;
                } else {
                    const Frame& frame = frames_[item.frame];
                    todo_.push_back({frame.node, frame.count, frame.caller});
                }
                break;
        }
    }
    std::sort(found_.begin(), found_.end());
    found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
    if (found_.size() > kMostHeads) too_ambiguous();
}

uint32_t GrammarMatcher::frame_of(const Frame& frame) {
    const uint64_t hash = mix(mix(mix(0, frame.node), frame.count), frame.caller);
    const auto same = [&](int32_t i) { return frames_[static_cast<size_t>(i)] == frame; };
    if (const int32_t known = frame_index_.find(hash, same); known >= 0) return static_cast<uint32_t>(known);
    if (frames_.size() == 2 * kManyFrames) {
        todo_.clear();
        too_ambiguous();
    }
    frame_index_.insert(hash, static_cast<int32_t>(frames_.size()), same);
    frames_.push_back(frame);
    return static_cast<uint32_t>(frames_.size() - 1);
}

uint32_t GrammarMatcher::set_of_found() {
    uint64_t hash = found_end_ ? 1 : 0;
    for (const Head& head : found_) hash = mix(mix(hash, head.node), head.frame);
    const auto same = [&](int32_t i) {
        const HeadSet& set = sets_[static_cast<size_t>(i)];
        return set.ends == found_end_ && std::equal(found_.begin(), found_.end(), heads_.begin() + set.first,
                                                    heads_.begin() + set.first + set.heads);
    };
    if (const int32_t known = set_index_.find(hash, same); known >= 0) return static_cast<uint32_t>(known);
    set_index_.insert(hash, static_cast<int32_t>(sets_.size()), same);
    sets_.push_back({static_cast<uint32_t>(heads_.size()), static_cast<uint32_t>(found_.size()), found_end_});
    heads_.insert(heads_.end(), found_.begin(), found_.end());
    steps_.resize(sets_.size() * grammar_->classes(), kUnknown);
    return static_cast<uint32_t>(sets_.size() - 1);
}

}  // namespace weir
