// Numbers between bounds, digit by digit, as parts of a Grammar: "minimum", "maximum" and those that exclude themselves.
//
// Pure; any thread. Throws GrammarError.
#pragma once

#include <optional>

#include "runtime/service/grammar.h"

namespace weir {

struct NumberBounds {
    std::optional<double> least, most;
    bool above = false, below = false;  // the bounds themselves are left out
};

// Numbers within the bounds, whole or with a fraction, and then `next`; nothing() where there are none. digit: a rule for one.
Grammar::NodeId number_between(Grammar& grammar, Grammar::RuleId digit, const NumberBounds& bounds, bool fraction,
                               Grammar::NodeId next);

}  // namespace weir
