// Random schemas, and for each a value that a sampler which draws at random within it comes to: schema_samples SEED COUNT
// prints one object a line, {"schema": ..., "text": ...}. schema_test.py holds them against another validator.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "runtime/engine/sampler.h"
#include "runtime/service/token_trie.h"
#include "tests/service/grammar_fixture.h"

namespace {

using Json = nlohmann::ordered_json;
using weir::TokenId;

class Schemas {
  public:
    explicit Schemas(uint32_t seed) : random_(seed) {}

    Json make() {
        Json made = any(0);
        if (made.is_object() && made.contains("$ref")) made = Json{{"type", "array"}, {"items", made}};
        made["$defs"]["d"] = {{"type", "object"}, {"properties", {{"again", {{"$ref", "#/$defs/d"}}}, {"x", any(2)}}}};
        return made;
    }

  private:
    size_t below(size_t n) { return random_() % n; }

    Json value() {
        const Json all[] = {1, -3, true, nullptr, "a", "a\"b", "\u00E9", 0.5, Json::array({1, "x"}), Json{{"k", 1}}};
        return all[below(std::size(all))];
    }

    Json object(int depth) {
        Json made{{"type", "object"}};
        const char* const names[] = {"name", "n", "kind", "\u00E9t\u00E9", "quo\"te", "a"};
        for (const char* const name : names) {
            if (below(2) == 0) continue;
            made["properties"][name] = any(depth + 1);
            if (below(2) == 0) made["required"].push_back(name);
        }
        if (below(4) == 0) made["required"].push_back("unnamed");
        const size_t more = below(4);
        const bool closed = made.contains("required") && made["required"].back() == "unnamed";
        if (more == 0 && !closed) made["additionalProperties"] = false;
        if (more == 1) made["additionalProperties"] = any(depth + 1);
        if (more == 2) made["additionalProperties"] = true;
        return made;
    }

    Json bounded(const char* type) {
        Json made{{"type", type}, {"description", "pattern"}};
        const double scales[] = {1, 0.5, 0.001, 1000}, scale = scales[below(std::size(scales))];
        const double low = (static_cast<double>(below(400)) - 200) * scale;
        if (below(3) > 0) made[below(2) == 0 ? "minimum" : "exclusiveMinimum"] = low;
        if (below(3) > 0) made[below(2) == 0 ? "maximum" : "exclusiveMaximum"] = low + 3 + static_cast<double>(below(300)) * scale;
        if (type == std::string("integer") && below(2) == 0) made["maximum"] = std::ceil(low) + 2;
        return made;
    }

    Json text() {
        const char* const formats[] = {"date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname", "duration", "uri"};
        const char* const patterns[] = {"^[a-z]+$", "^\\d{3}-\\d{4}$", "x", "^(ab|[^\\\\a-f]{2,3})*\\.?$", "^\\S\\W\\w.\\D$", "\"$", "^\\[[A-Z\\d_-]+?\\]"};
        if (below(3) == 0) return {{"type", "string"}, {"format", formats[below(std::size(formats))]}};
        if (below(2) == 0) return {{"type", "string"}, {"pattern", patterns[below(std::size(patterns))]}};
        return {{"type", "string"}, {"minLength", below(3)}, {"maxLength", 2 + below(4)}};
    }

    Json any(int depth) {
        switch (below(depth > 2 ? 6 : 12)) {
            case 0: return bounded("integer");
            case 1: return bounded("number");
            case 2: return text();
            case 3: return {{"type", {"boolean", "null"}}};
            case 4: return {{"enum", {value(), value(), value()}}};
            case 5: return {{"const", value()}};
            case 6:
                return {
                    {"type", "array"}, {"items", any(depth + 1)}, {"minItems", below(3)}, {"maxItems", 2 + below(3)}};
            case 7: return {{"anyOf", {any(depth + 1), any(depth + 1)}}};
            case 8:
                return {{"oneOf",
                         {{{"type", "string"}}, object(depth + 1), {{"type", "array"}, {"items", any(depth + 1)}}}}};
            case 9: return {{"$ref", "#/$defs/d"}};
            case 10: return {{"prefixItems", {any(depth + 1), any(depth + 1)}}, {"items", any(depth + 1)}, {"minItems", below(4)}};
            default: return object(depth);
        }
    }

    std::mt19937 random_;
};

bool has(const std::vector<uint64_t>& mask, TokenId id) {
    return (mask[static_cast<size_t>(id) / 64] >> (static_cast<size_t>(id) % 64) & 1) != 0;
}

// Draws by logits of noise, which close what is open sooner as time goes by.
std::string draw(const std::shared_ptr<const weir::Grammar>& grammar, const weir::TokenTrie& trie, size_t n_vocab,
                 uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> noise(0, 3);
    weir::Sampler sampler({.temperature = seed % 3 == 0 ? 0.0f : 1.0f, .top_k = 0, .seed = seed});
    weir::Constraint constraint(grammar, trie);
    std::string text;
    std::vector<float> logits(n_vocab);
    for (uint64_t position = 0; position < 5000; ++position) {
        for (size_t id = 0; id < n_vocab; ++id) {
            const std::string_view piece = trie.text(static_cast<TokenId>(id));
            const bool closes = piece.empty() || piece.find_first_of("\"]}") == 0;
            logits[id] = noise(random) + (closes ? static_cast<float>(position) / 8 : 0);
        }
        const std::vector<uint64_t>& mask = constraint.mask();
        const TokenId id = sampler.sample(logits, {}, position, mask);
        if (!has(mask, id)) std::abort();
        if (trie.ends(id)) return text;
        constraint.took(id);
        text += trie.text(id);
        if (constraint.complete()) return text;
    }
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const uint32_t seed = static_cast<uint32_t>(std::atoi(argv[1])), count = static_cast<uint32_t>(std::atoi(argv[2]));
    const auto tokenizer = weir::test::json_vocab().tokenizer();
    const weir::TokenTrie trie(*tokenizer);
    for (uint32_t i = 0; i < count; ++i) {
        const Json schema = Schemas(seed + i).make();
        const auto grammar = weir::test::grammar_of(schema);
        const std::string text = draw(grammar, trie, tokenizer->size(), seed + i);
        std::printf("%s\n", Json{{"seed", seed + i}, {"schema", schema}, {"text", text}}.dump().c_str());
    }
}
