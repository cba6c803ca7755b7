// Regular expressions, as schemas have them (ECMA 262), to parts of a Grammar: the keyword "pattern", and "format", each of which
// is a regular expression that is kept here.
//
// Taken: characters and classes of ASCII, \d \w \s and their opposites, the dot, groups, alternatives, counts, and anchors at the
// very ends. What it makes is a part of what matches: of classes that leave something out ([^x], \W) the printable characters of
// ASCII, of formats the common forms.
//
// Pure; any thread. Throws PatternError, GrammarError.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "runtime/service/grammar.h"

namespace weir {

// What is wrong with an expression, or not supported: "has a group that looks ahead".
struct PatternError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What a JSON string may hold between its quotes, and then `next`. character: a rule for one character of a string, which the dot
// is, and what lies before and behind a match that is not anchored.
Grammar::NodeId pattern_of(Grammar& grammar, const std::string& pattern, Grammar::RuleId character, Grammar::NodeId next);

// The expression for a format; nothing where it is none of those known.
std::optional<std::string> pattern_of_format(const std::string& format);

}  // namespace weir
