#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/model/tokenizer_pre.h"

#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <span>

#include "runtime/error.h"
#include "runtime/model/utf8.h"

namespace weir {

namespace {

struct Scheme {
    std::string_view name;
    std::span<const std::string_view> aliases;
    std::span<const char* const> patterns;
    bool takes_whole_words;
    bool adds_bos;
};

// Written out below: [\t-\r\x85\p{Z}] is Unicode's White_Space, which \s means to the tokenizers that these come
// from. pcre2's \s has U+180E besides.

// GPT-2's.
constexpr const char* kGpt2Words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\t-\r\x85\p{Z}\p{L}\p{N}]+)"
                                   R"(|[\t-\r\x85\p{Z}]+(?![^\t-\r\x85\p{Z}])|[\t-\r\x85\p{Z}]+)";

constexpr const char* kGpt2[] = {kGpt2Words};

constexpr const char* kLlama3[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\t-\r\x85\p{Z}\p{L}\p{N}]+[\r\n]*)"
    R"(|[\t-\r\x85\p{Z}]*[\r\n]+|[\t-\r\x85\p{Z}]+(?![^\t-\r\x85\p{Z}])|[\t-\r\x85\p{Z}]+)"};

// As Llama 3's, but for the digits.
constexpr const char* kQwen2[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\t-\r\x85\p{Z}\p{L}\p{N}]+[\r\n]*)"
    R"(|[\t-\r\x85\p{Z}]*[\r\n]+|[\t-\r\x85\p{Z}]+(?![^\t-\r\x85\p{Z}])|[\t-\r\x85\p{Z}]+)"};

// Every digit by itself, then GPT-2's.
constexpr const char* kSmollm[] = {R"(\p{N})", kGpt2Words};

// What byte-level files that only say "default" are read with: Falcon's row. Punctuation in runs, GPT-2's, numbers in
// runs, digits in threes.
constexpr const char* kDefault[] = {R"([\p{P}$+<=>^~|]+)", kGpt2Words, R"(\p{N}+)", "[0-9][0-9][0-9]"};

constexpr std::string_view kLlama3Aliases[] = {"llama3", "llama-v3"};

constexpr Scheme kSchemes[] = {
    {"default", {}, kDefault, false, false},
    {"gpt-2", {}, kGpt2, false, false},
    {"llama-bpe", kLlama3Aliases, kLlama3, true, true},
    {"qwen2", {}, kQwen2, false, false},
    {"smollm", {}, kSmollm, false, false},
};

struct CodeDeleter {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataDeleter {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::string pcre2_message(int error) {
    PCRE2_UCHAR text[256] = {};
    pcre2_get_error_message(error, text, sizeof(text));
    return reinterpret_cast<const char*>(text);
}

class RegexPreTokenizer final : public PreTokenizer {
  public:
    RegexPreTokenizer(const Scheme& scheme, bool jit) : scheme_(scheme), context_(pcre2_match_context_create(nullptr)) {
        if (!context_) throw std::bad_alloc();
        // A run of a million blanks is backtracked over once per character: legal, and linear in all, but above
        // the default limit of ten million steps from there on.
        pcre2_set_match_limit(context_.get(), UINT32_MAX);
        for (const char* pattern : scheme.patterns) codes_.push_back(compile(pattern, jit));
    }

    void split(std::string_view text, std::vector<std::string_view>& words) const override {
        const MatchData match_data(pcre2_match_data_create(1, nullptr));
        if (!match_data) throw std::bad_alloc();
        std::vector<std::string_view> pieces;
        std::vector<std::string_view> finer;
        // pcre2 is told not to check UTF-8: it would check all that is left of the text at every match.
        for (size_t at = 0; at < text.size();) {
            const size_t valid = valid_prefix(text.substr(at));
            if (valid == 0) {
                words.push_back(text.substr(at, 1));
                ++at;
                continue;
            }
            pieces.assign(1, text.substr(at, valid));
            for (const Code& code : codes_) {
                finer.clear();
                for (const std::string_view piece : pieces) cut(code.get(), match_data.get(), piece, finer);
                pieces.swap(finer);
            }
            words.insert(words.end(), pieces.begin(), pieces.end());
            at += valid;
        }
    }

    bool takes_whole_words() const override { return scheme_.takes_whole_words; }
    bool adds_bos() const override { return scheme_.adds_bos; }

  private:
    using Code = std::unique_ptr<pcre2_code, CodeDeleter>;
    using MatchData = std::unique_ptr<pcre2_match_data, MatchDataDeleter>;

    static Code compile(const char* pattern, bool jit) {
        int error = 0;
        PCRE2_SIZE offset = 0;
        Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                &error, &offset, nullptr));
        if (!code) {
            throw Error("pcre2 refuses the expression " + std::string(pattern) + " at " + std::to_string(offset) +
                        ": " + pcre2_message(error));
        }
        // Not an error where it fails: pcre2_match() then interprets.
        if (jit) pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
        return code;
    }

    static size_t valid_prefix(std::string_view text) {
        size_t at = 0;
        while (const size_t length = utf8_length(text.substr(at))) at += length;
        return at;
    }

    // Appends what matches and what lies between.
    void cut(const pcre2_code* code, pcre2_match_data* match_data, std::string_view text,
             std::vector<std::string_view>& pieces) const {
        size_t done = 0;
        while (done < text.size()) {
            const int rc = match(code, match_data, text, done);
            if (rc == PCRE2_ERROR_NOMATCH) break;
            if (rc < 0) {
                throw Error("pcre2 fails on a text of " + std::to_string(text.size()) + " bytes: " + pcre2_message(rc));
            }
            const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match_data);
            if (bounds[0] > done) pieces.push_back(text.substr(done, bounds[0] - done));
            pieces.push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
            done = bounds[1];
        }
        if (done < text.size()) pieces.push_back(text.substr(done));
    }

    int match(const pcre2_code* code, pcre2_match_data* match_data, std::string_view text, size_t from) const {
        const auto run = [&](uint32_t options) {
            return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                               PCRE2_NO_UTF_CHECK | options, match_data, context_.get());
        };
        const int rc = run(0);
        return rc == PCRE2_ERROR_JIT_STACKLIMIT ? run(PCRE2_NO_JIT) : rc;
    }

    const Scheme& scheme_;
    std::unique_ptr<pcre2_match_context, MatchContextDeleter> context_;
    std::vector<Code> codes_;
};

}  // namespace

std::unique_ptr<PreTokenizer> PreTokenizer::create(std::string_view name, bool jit) {
    for (const Scheme& scheme : kSchemes) {
        const bool alias = std::find(scheme.aliases.begin(), scheme.aliases.end(), name) != scheme.aliases.end();
        if (scheme.name == name || alias) return std::make_unique<RegexPreTokenizer>(scheme, jit);
    }
    return nullptr;
}

std::string PreTokenizer::known_names() {
    std::string names;
    for (const Scheme& scheme : kSchemes) {
        if (!names.empty()) names += ", ";
        names += scheme.name;
    }
    return names;
}

}  // namespace weir
