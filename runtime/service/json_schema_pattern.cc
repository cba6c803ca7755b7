#include "runtime/service/json_schema_pattern.h"

#include <algorithm>
#include <bitset>
#include <string_view>
#include <utility>
#include <vector>

namespace weir {
namespace {

using NodeId = Grammar::NodeId;
using Set = std::bitset<128>;  // of ASCII

// Groups within groups.
constexpr int kDeepest = 32;
constexpr size_t kLongest = 1000;
constexpr uint32_t kMostTimes = 100'000;

struct Part {
    enum Kind { kSet, kAny, kBytes, kSequence, kChoice, kRepeat } kind;
    Set set;                  // kSet
    std::string bytes;        // kBytes: a character beyond ASCII
    std::vector<Part> parts;  // of the others
    uint32_t least = 0, most = 0;
};

Set range(int low, int high) {
    Set set;
    for (int c = low; c <= high; ++c) set.set(static_cast<size_t>(c));
    return set;
}

const Set kPrintable = range(' ', '~');
const Set kDigit = range('0', '9');
const Set kWord = kDigit | range('a', 'z') | range('A', 'Z') | range('_', '_');
const Set kSpace = range('\t', '\r') | range(' ', ' ');

class Parser {
  public:
    explicit Parser(std::string_view text) : text_(text) {
        if (text.size() > kLongest) throw PatternError("is longer than " + std::to_string(kLongest) + " bytes");
    }

    bool begins = false, ends = false;  // anchored

    Part parse() {
        begins = take('^');
        Part all = choice(0);
        if (at_ < text_.size()) throw PatternError("has a ')' too many");
        // An anchor is of one alternative, if there are several.
        if ((begins || ends) && all.parts.size() > 1) throw PatternError("has anchors beside '|': put the alternatives into a group");
        return all;
    }

  private:
    bool more() const { return at_ < text_.size(); }
    bool take(char c) {
        if (!more() || text_[at_] != c) return false;
        ++at_;
        return true;
    }
    char next() {
        if (!more()) throw PatternError("ends too early");
        return text_[at_++];
    }

    Part choice(int depth) {
        if (depth > kDeepest) throw PatternError("nests more than " + std::to_string(kDeepest) + " groups");
        Part made{.kind = Part::kChoice, .set = {}, .bytes = {}, .parts = {}};
        do made.parts.push_back(sequence(depth));
        while (take('|'));
        return made;
    }

    Part sequence(int depth) {
        Part made{.kind = Part::kSequence, .set = {}, .bytes = {}, .parts = {}};
        while (more() && text_[at_] != '|' && text_[at_] != ')') {
            if (text_[at_] == '$' && at_ + 1 == text_.size() && depth == 0) {
                ++at_;
                ends = true;
                break;
            }
            made.parts.push_back(times(one(depth)));
        }
        return made;
    }

    Part one(int depth) {
        const char c = next();
        switch (c) {
            case '(': {
                if (take('?') && !take(':')) throw PatternError("has a group that begins with '(?'");
                Part group = choice(depth + 1);
                if (!take(')')) throw PatternError("has a group without an end");
                return group;
            }
            case '[': return of_set(bracket());
            case '.': return {.kind = Part::kAny, .set = {}, .bytes = {}, .parts = {}};
            case '\\': return of_set(escape());
            case '^':
            case '$': throw PatternError("has an anchor elsewhere than at its ends");
            case '*':
            case '+':
            case '?':
            case '{': throw PatternError(std::string("has a '") + c + "' with nothing to repeat");
            default: break;
        }
        if (static_cast<unsigned char>(c) < 0x80) return of_set(range(c, c));
        Part made{.kind = Part::kBytes, .set = {}, .bytes = {c}, .parts = {}};
        while (more() && (static_cast<unsigned char>(text_[at_]) & 0xC0) == 0x80) made.bytes += text_[at_++];
        return made;
    }

    static Part of_set(const Set& set) { return {.kind = Part::kSet, .set = set, .bytes = {}, .parts = {}}; }

    Set escape() {
        const char c = next();
        switch (c) {
            case 'd': return kDigit;
            case 'D': return kPrintable & ~kDigit;
            case 'w': return kWord;
            case 'W': return kPrintable & ~kWord;
            case 's': return kSpace;
            case 'S': return kPrintable & ~kSpace;
            case 'n': return range('\n', '\n');
            case 't': return range('\t', '\t');
            case 'r': return range('\r', '\r');
            default: break;
        }
        if (kWord[static_cast<unsigned char>(c) & 0x7F] || static_cast<unsigned char>(c) >= 0x80)
            throw PatternError(std::string("has '\\") + c + "'");
        return range(c, c);
    }

    Set bracket() {
        const bool others = take('^');
        Set set;
        while (!take(']')) {
            const char c = next();
            if (static_cast<unsigned char>(c) >= 0x80) throw PatternError("has a class with characters beyond ASCII");
            const Set low = c == '\\' ? escape() : range(c, c);
            if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']' && low.count() == 1) {
                ++at_;
                const char d = next();
                const Set high = d == '\\' ? escape() : static_cast<unsigned char>(d) < 0x80 ? range(d, d) : Set();
                const int from = first_of(low), to = first_of(high);
                if (high.count() != 1 || from > to) throw PatternError("has a class with a range that is none");
                set |= range(from, to);
            } else {
                set |= low;
            }
        }
        return others ? kPrintable & ~set : set;
    }

    static int first_of(const Set& set) {
        int c = 0;
        while (c < 128 && !set[static_cast<size_t>(c)]) ++c;
        return c;
    }

    uint32_t number() {
        uint32_t n = 0;
        const size_t begin = at_;
        for (; more() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
            n = n * 10 + static_cast<uint32_t>(text_[at_] - '0');
            if (n > kMostTimes) throw PatternError("counts beyond " + std::to_string(kMostTimes));
        }
        if (at_ == begin) throw PatternError("has a '{' that counts nothing");
        return n;
    }

    Part times(Part part) {
        uint32_t least = 1, most = 1;
        if (take('*')) {
            least = 0;
            most = Grammar::kUnlimited;
        } else if (take('+')) {
            most = Grammar::kUnlimited;
        } else if (take('?')) {
            least = 0;
        } else if (take('{')) {
            least = most = number();
            if (take(',')) most = more() && text_[at_] == '}' ? Grammar::kUnlimited : number();
            if (!take('}') || least > most) throw PatternError("has a '{' that counts nothing");
        } else {
            return part;
        }
        (void)take('?');  // how much is tried first is no matter of what matches
        Part made{.kind = Part::kRepeat, .set = {}, .bytes = {}, .parts = {}, .least = least, .most = most};
        made.parts.push_back(std::move(part));
        return made;
    }

    const std::string_view text_;
    size_t at_ = 0;
};

struct Maker {
    Grammar& grammar;
    const Grammar::RuleId character;

    NodeId make(const Part& part, NodeId next) {
        switch (part.kind) {
            case Part::kSet: return one_of(part.set, next);
            case Part::kAny: return grammar.call(character, next);
            case Part::kBytes: return grammar.literal(part.bytes, next);
            case Part::kSequence:
                for (size_t i = part.parts.size(); i-- > 0;) next = make(part.parts[i], next);
                return next;
            case Part::kChoice: {
                std::vector<NodeId> ways;
                for (const Part& way : part.parts) ways.push_back(make(way, next));
                return grammar.either(ways);
            }
            case Part::kRepeat: break;
        }
        if (part.most == 1) {
            const NodeId once = make(part.parts[0], next);
            return part.least == 1 ? once : grammar.either(once, next);
        }
        const Grammar::RuleId rule = grammar.add_rule();
        grammar.set_rule(rule, make(part.parts[0], grammar.end()));
        return grammar.repeat(rule, part.least, part.most, next);
    }

    // As JSON writes them.
    NodeId one_of(const Set& set, NodeId next) {
        std::vector<NodeId> ways;
        for (size_t c = ' '; c <= '~'; ++c) {
            if (!plain(set, c)) continue;
            const size_t low = c;
            while (plain(set, c + 1)) ++c;
            ways.push_back(grammar.bytes(static_cast<uint8_t>(low), static_cast<uint8_t>(c), next));
        }
        constexpr std::pair<char, const char*> kEscaped[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\t', "\\t"}, {'\r', "\\r"}};
        for (const auto& [c, text] : kEscaped) {
            if (set[static_cast<size_t>(c)]) ways.push_back(grammar.literal(text, next));
        }
        return grammar.either(ways);
    }
    static bool plain(const Set& set, size_t c) { return c <= '~' && c != '"' && c != '\\' && set[c]; }
};

// Days that every year has.
const std::string kDate = R"([12]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])))";
// RFC 3339; without leap seconds.
const std::string kTime = R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
const std::string kLabel = R"([A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?)";
const std::string kHost = kLabel + R"((\.)" + kLabel + "){0,4}";
const std::string kDecimalByte = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";

struct Format {
    const char* name;
    std::string pattern;
};
const Format kFormats[] = {
    {"date", kDate},
    {"time", kTime},
    {"date-time", kDate + "T" + kTime},
    {"duration", R"(P(\d{1,4}[YMWD]|\d{1,4}DT\d{1,4}[HMS]|T\d{1,4}[HMS]))"},
    {"uuid", R"([0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"},
    {"hostname", kHost},
    {"email", R"([A-Za-z0-9]+([._+-][A-Za-z0-9]+)*@)" + kLabel + R"((\.)" + kLabel + "){1,4}"},
    {"ipv4", kDecimalByte + R"((\.)" + kDecimalByte + "){3}"},
    {"ipv6", "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}"},
    {"uri", "https?://" + kHost + R"((:[1-9]\d{0,3})?(/[A-Za-z0-9._~-]*)*(\?[A-Za-z0-9._~=&-]*)?)"},
};

}  // namespace

NodeId pattern_of(Grammar& grammar, const std::string& pattern, Grammar::RuleId character, NodeId next) {
    Parser parser(pattern);
    const Part part = parser.parse();
    if (!parser.ends) next = grammar.repeat(character, 0, Grammar::kUnlimited, next);
    const NodeId made = Maker{grammar, character}.make(part, next);
    return parser.begins ? made : grammar.repeat(character, 0, Grammar::kUnlimited, made);
}

std::optional<std::string> pattern_of_format(const std::string& format) {
    for (const Format& known : kFormats) {
        if (format == known.name) return "^(" + known.pattern + ")$";
    }
    return std::nullopt;
}

}  // namespace weir
