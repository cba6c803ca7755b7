// A generation as a client reads it: text in whole characters that ends before a stop string, with the tokens it is made of.
//
// One per answer, for the thread that reads it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model/text_stream.h"
#include "runtime/service/generation.h"

namespace weir {

class Answer {
  public:
    struct Piece {
        std::string text;
        std::vector<GeneratedToken> tokens;  // may be none: text that was held back
    };

    // stops: none of them empty.
    Answer(std::shared_ptr<Generation> generation, const Tokenizer& tokenizer, std::vector<std::string> stops);
    // Whoever goes away early wants no more tokens.
    ~Answer() { generation_->cancel(); }
    Answer(const Answer&) = delete;
    Answer& operator=(const Answer&) = delete;

    // The next text; kEnd when there will be none, kNothing when none has come within the time. Text that could be the
    // beginning of a stop string waits until it is clear.
    Generation::Next next(Piece* piece, std::chrono::milliseconds patience);

    // After kEnd. Ended by the model or by a stop string; otherwise by a limit, or by an error.
    bool stopped() const { return stopped_ || outcome_.finish == FinishReason::kEnd; }
    const Generation::Outcome& outcome() const { return outcome_; }
    size_t tokens() const { return tokens_; }

  private:
    bool take(std::string text, bool last, Piece* piece);
    Generation::Next end(Piece* piece);

    const std::shared_ptr<Generation> generation_;
    const std::vector<std::string> stops_;
    TextStream stream_;
    std::string held_;
    std::vector<GeneratedToken> held_tokens_;
    bool stopped_ = false;
    bool ended_ = false;
    size_t tokens_ = 0;
    Generation::Outcome outcome_;
};

}  // namespace weir
