// The next token from logits. Filters in the order that llama.cpp's users know: repetition penalty, top-k, top-p, min-p,
// temperature, draw. The noise of a draw comes from a counter, (seed, position), so that it depends on nothing else: not on
// how many draws came before, nor on what else is running.
//
// Pure but for a scratch buffer: one Sampler per sequence, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/tokenizer.h"

namespace weir {

struct SamplerOptions {
    float temperature = 0.8f;     // 0: the highest logit, the lowest id among equals
    size_t top_k = 40;            // 0: all
    float top_p = 0.95f;          // 1: all (Holtzman et al. 2020)
    float min_p = 0.05f;          // 0: all; relative to the most probable token
    float repeat_penalty = 1.0f;  // 1: none (Keskar et al. 2019)
    size_t repeat_last_n = 64;    // tokens of the history that are penalised
    uint64_t seed = 0;
};

class Sampler {
  public:
    explicit Sampler(const SamplerOptions& options) : options_(options) {}

    // logits: [n_vocab], finite, at least one. history: prompt and answer so far. position: of the token to be drawn.
    // allowed: a bit for each token that may be drawn, at least one; none: all may.
    TokenId sample(std::span<const float> logits, std::span<const TokenId> history, uint64_t position,
                   std::span<const uint64_t> allowed = {}) {
        return sample_of({}, logits, history, position, allowed);
    }
    // The same where logits are not of the whole vocabulary: logits[i] is of token ids[i], and the first of equals is taken.
    TokenId sample_of(std::span<const TokenId> ids, std::span<const float> logits, std::span<const TokenId> history, uint64_t position,
                      std::span<const uint64_t> allowed = {});

  private:
    struct Candidate {
        float logit;
        TokenId id;
    };
    void penalise(std::span<const TokenId> history, bool whole);
    void keep_top_p();
    void keep_min_p();

    SamplerOptions options_;
    std::vector<Candidate> candidates_;
};

// A number in [0, 1) that depends on its two arguments alone (SplitMix64, Steele et al. 2014).
double counter_noise(uint64_t seed, uint64_t position);

}  // namespace weir
