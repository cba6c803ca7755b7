// A vocabulary of 300 numbers in which one id, of the test's choice, ends the answer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/model/tokenizer.h"

namespace weir::test {

class PlainVocabulary : public Tokenizer {
  public:
    explicit PlainVocabulary(TokenId end) : end_(end) {}
    std::vector<TokenId> encode(std::string_view, bool, bool) const override { return {}; }
    std::string piece(TokenId id, bool) const override { return std::to_string(id); }
    std::string decode(const std::vector<TokenId>&, bool) const override { return {}; }
    size_t size() const override { return 300; }
    std::optional<TokenId> bos() const override { return std::nullopt; }
    std::optional<TokenId> eos() const override { return end_; }
    bool adds_bos() const override { return false; }
    bool ends_generation(TokenId id) const override { return id == end_; }
    std::optional<TokenId> find(std::string_view) const override { return std::nullopt; }

  private:
    TokenId end_;
};

}  // namespace weir::test
