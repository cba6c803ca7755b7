#include "runtime/service/json_schema_numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace weir {
namespace {

using NodeId = Grammar::NodeId;

// Digits that doubles tell apart, and of them behind the point.
constexpr size_t kDigits = 15;
constexpr size_t kFraction = 6;

// A number that is not below 0, as its digits.
struct Decimal {
    std::string whole, fraction;  // without zeros that say nothing; whole may be ""
};

Decimal decimal(double value) {  // 0 may have a sign
    std::array<char, 400> text;
    const auto end = std::to_chars(text.data(), text.data() + text.size(), std::fabs(value), std::chars_format::fixed).ptr;
    const std::string all(text.data(), end);
    const size_t point = std::min(all.find('.'), all.size());
    Decimal made{all.substr(0, point), point < all.size() ? all.substr(point + 1) : ""};
    made.whole.erase(0, std::min(made.whole.find_first_not_of('0'), made.whole.size()));
    return made;
}

// What is at least `low` and at most `high`, neither below 0. A bound that is none holds for all digits there are.
class Between {
  public:
    Between(Grammar& grammar, Grammar::RuleId digit, bool fraction, NodeId next)
        : g_(grammar), digit_(digit), fraction_(fraction), next_(next) {}

    NodeId make(Decimal low, bool above, Decimal high, bool below) {
        low_ = std::move(low);
        high_ = std::move(high);
        above_ = above;
        below_ = below;
        room_ = fraction_ ? std::max({kFraction, low_.fraction.size() + 1, high_.fraction.size()}) : 0;
        std::vector<NodeId> ways;
        for (size_t n = std::max<size_t>(low_.whole.size(), 1); n <= std::max<size_t>(high_.whole.size(), 1); ++n) {
            const std::string from = n == std::max<size_t>(low_.whole.size(), 1) ? padded(low_.whole) : "";
            const std::string to = n == std::max<size_t>(high_.whole.size(), 1) ? padded(high_.whole) : "";
            ways.push_back(whole(from, to, n, 0));
        }
        return g_.either(ways);
    }

  private:
    static std::string padded(const std::string& whole) { return whole.empty() ? "0" : whole; }

    NodeId any_digits(size_t least, size_t most, NodeId next) {
        return g_.repeat(digit_, static_cast<uint32_t>(least), static_cast<uint32_t>(most), next);
    }
    NodeId between(int low, int high, NodeId next) {
        return low > high ? g_.nothing() : g_.bytes(static_cast<uint8_t>(low), static_cast<uint8_t>(high), next);
    }
    // Digits behind those that tell.
    NodeId free(size_t used) { return any_digits(0, room_ - std::min(room_, used), next_); }
    // A fraction of any kind, or none.
    NodeId any_fraction() { return fraction_ ? g_.either(next_, g_.literal(".", any_digits(1, room_, next_))) : next_; }

    // From digit `at` of a whole part of n digits on; equal to `from` and to `to` so far, where they are not empty.
    NodeId whole(const std::string& from, const std::string& to, size_t n, size_t at) {
        if (at == n) return fraction(!from.empty(), !to.empty());
        const int least = from.empty() ? (at == 0 && n > 1 ? '1' : '0') : from[at], most = to.empty() ? '9' : to[at];
        if (from.empty() && to.empty() && at > 0) return any_digits(n - at, n - at, any_fraction());
        if (least > most) return g_.nothing();
        if (!from.empty() && !to.empty() && least == most) return between(least, most, whole(from, to, n, at + 1));
        std::vector<NodeId> ways;
        if (!from.empty()) ways.push_back(between(least, least, whole(from, "", n, at + 1)));
        if (!to.empty()) ways.push_back(between(most, most, whole("", to, n, at + 1)));
        const int low = from.empty() ? least : least + 1, high = to.empty() ? most : most - 1;
        if (low <= high) ways.push_back(between(low, high, any_digits(n - at - 1, n - at - 1, any_fraction())));
        return g_.either(ways);
    }

    // Behind a whole part that is that of the bounds which are `tight`.
    NodeId fraction(bool tight_low, bool tight_high) {
        if (!tight_low && !tight_high) return any_fraction();
        const bool low_is_whole = low_.fraction.empty(), high_is_whole = high_.fraction.empty();
        const bool none = !(tight_low && (!low_is_whole || above_)) && !(tight_high && high_is_whole && below_);
        NodeId made = none ? next_ : g_.nothing();
        if (fraction_) made = g_.either(made, g_.literal(".", digits(tight_low, tight_high, 0)));
        return made;
    }

    // The fraction from its digit `at` on; at least one has to come where at is 0.
    NodeId digits(bool tight_low, bool tight_high, size_t at) {
        if (!tight_low && !tight_high) return free(at);
        if (at >= room_) return g_.nothing();
        const bool low_over = at >= low_.fraction.size(), high_over = at >= high_.fraction.size();
        const int low = !tight_low || low_over ? '0' : low_.fraction[at];
        const int high = !tight_high ? '9' : high_over ? '0' : high_.fraction[at];
        if (low > high) return g_.nothing();
        std::vector<NodeId> ways;
        // What ends here has zeros from here on.
        const bool low_holds = !tight_low || (low_over && !above_), high_holds = !tight_high || !high_over || !below_;
        if (at > 0 && low_holds && high_holds) ways.push_back(next_);
        if (tight_low && low_over && !above_ && !tight_high) {
            ways.push_back(any_digits(1, room_ - at, next_));  // nothing is told any more
            return g_.either(ways);
        }
        if (tight_high && high_over && !tight_low) return g_.either(ways);
        if (low == high) {
            ways.push_back(between(low, high, digits(tight_low, tight_high, at + 1)));
            return g_.either(ways);
        }
        if (tight_low) ways.push_back(between(low, low, digits(true, false, at + 1)));
        if (tight_high) ways.push_back(between(high, high, digits(false, true, at + 1)));
        const int from = tight_low ? low + 1 : low, to = tight_high ? high - 1 : high;
        ways.push_back(between(from, to, free(at + 1)));
        return g_.either(ways);
    }

    Grammar& g_;
    const Grammar::RuleId digit_;
    const bool fraction_;
    const NodeId next_;
    Decimal low_, high_;
    bool above_ = false, below_ = false;
    size_t room_ = 0;
};

}  // namespace

NodeId number_between(Grammar& grammar, Grammar::RuleId digit, const NumberBounds& bounds, bool fraction, NodeId next) {
    const double largest = std::pow(10, kDigits) - 1;
    double least = std::max(bounds.least.value_or(-largest), -largest), most = std::min(bounds.most.value_or(largest), largest);
    bool above = bounds.above && bounds.least && least == *bounds.least, below = bounds.below && bounds.most && most == *bounds.most;
    if (!fraction) {
        least = above ? std::floor(least) + 1 : std::ceil(least);
        most = below ? std::ceil(most) - 1 : std::floor(most);
        above = below = false;
    }
    if (least > most || (least == most && (above || below))) return grammar.nothing();
    Between numbers(grammar, digit, fraction, next);
    std::vector<NodeId> ways;
    if (most >= 0 && !(most == 0 && below)) {
        const bool from_zero = least < 0;
        ways.push_back(numbers.make(decimal(from_zero ? 0 : least), !from_zero && above, decimal(most), below));
    }
    if (least < 0) {
        const bool to_zero = most > 0;
        const NodeId magnitude = numbers.make(decimal(to_zero ? 0 : -most), to_zero || below, decimal(-least), above);
        ways.push_back(grammar.bytes('-', '-', magnitude));
    }
    return grammar.either(ways);
}

}  // namespace weir
