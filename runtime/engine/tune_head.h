// The head of a decoder (the last norm, the matrix, softmax) at a level that is tuned, against the source's: the loss
// is the KL divergence of its distributions from the source's, KL(truth || level), which is what is wanted in the end.
// For tuning (runtime/engine/tune.h); called by the team's owner.
//
// Weights are made float some rows at a time: memory is the scales', and two rows of logits for each token of a step.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "runtime/engine/model.h"
#include "runtime/engine/tune_products.h"
#include "runtime/engine/tune_scales.h"

namespace weir {

class TuneHead {
  public:
    // Of at most `tokens` tokens at a time.
    TuneHead(const Model& model, const TuneProducts& products, size_t tokens);
    static uint64_t bytes(const ModelConfig& config, size_t tokens);

    // states: what enters the head, [tokens, dim], at the level and in the source. Mean KL divergence, nats a token.
    // The gradient goes to see(first row, rows, gradient[rows, dim]) for all rows, by any worker; no `see`: it is not
    // computed.
    using See = std::function<void(size_t first, size_t rows, const float* gradient)>;
    double divergence(const TuneScales& scales, const float* states, const float* source_states, size_t tokens,
                      const See& see);

  private:
    using FillRows = std::function<void(size_t first, size_t rows, float* out)>;
    void logits(const float* states, size_t tokens, const FillRows& fill, std::vector<float>* normed,
                std::vector<float>* out) const;
    double token_gradient(float* logits, const float* truth, size_t tokens) const;

    const Model& model_;
    const TuneProducts& products_;
    std::vector<float> normed_, source_normed_;  // [tokens, dim]
    std::vector<float> logits_, truth_;          // [tokens, n_vocab]
};

}  // namespace weir
