// What goes together in the inputs of each matrix on a calibration text: the sums of x x^T that learned rounding wants
// (kernels/nested_learn.h), by passes of the source model.
//
// They are taken when they are asked for, of as many layers at a time as the memory given for them holds: whoever asks in
// execution order causes the fewest passes. One caller at a time, who owns the Forward meanwhile. Throws what a pass throws.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/nested_learn.h"
#include "runtime/engine/forward.h"
#include "runtime/engine/kv_cache.h"
#include "runtime/engine/team.h"
#include "runtime/model/tokenizer.h"

namespace weir {

class SecondMoments {
  public:
    using Shared = std::shared_ptr<const kernels::Feedback>;

    struct Source {
        const Model* model;
        Forward* forward;
        KvCache* cache;
        Team* team;
        const kernels::KernelSet* kernels;
    };
    // ids: whole windows of the text, each a pass of its own; the last `logit_rows` tokens of each show what the head takes in.
    // memory: bytes for the moments of the layers that are taken together. progress is told windows done of a sweep over the
    // text, and may end it with an exception.
    SecondMoments(const Source& source, std::vector<TokenId> ids, size_t window, size_t logit_rows, uint64_t memory,
                  std::function<void(size_t done, size_t windows)> progress);
    ~SecondMoments();

    // feedback_of() the inputs of a layer's matrix or the head, by its tensor's name; Error for any other.
    Shared feedback(const std::string& tensor);

    size_t sweeps() const { return sweeps_; }

  private:
    class Watch;
    struct Input {
        size_t layer;                // n_layers: the head
        std::vector<float> moments;  // empty: not taken, or spent
        Shared feedback;
    };

    const Matrix& shared_input(const std::string& tensor) const;
    void sweep(size_t first_layer);

    const Source source_;
    std::vector<TokenId> ids_;
    const size_t window_, logit_rows_;
    const uint64_t memory_;
    const std::function<void(size_t, size_t)> progress_;
    std::map<const Matrix*, Input> inputs_;  // by the first of the matrices that share it
    size_t sweeps_ = 0;
};

}  // namespace weir
