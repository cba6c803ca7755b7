// The forward pass of a decoder: token ids in, logits out (Touvron et al. 2023: RMSNorm, rotary positions, grouped-query
// attention, SwiGLU; where other families differ, see runtime/model/architecture.h). Walks the weights once per batch, in
// execution order, with the whole team.
//
// A pass may hold tokens of several sequences, each with a KvCache of its own: they share one walk over the weights.
//
// The logits of a token depend on the tokens before it in its sequence and on nothing else, to the bit: not on how many
// tokens are computed together, nor whose, nor on how a prompt is cut, nor on the number of threads. Every sum runs in one
// fixed order.
//
// Threads: one owner calls pass(); the work, everything that reads weights included, is done by the team's workers, and
// worker 0 leads. Failure: Error where the context is full, an id is no token, weights cannot be had any more, or a value
// stops being finite; the KV caches then still hold what they held before the pass.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "runtime/engine/activation_buffers.h"
#include "runtime/engine/expert_trace.h"
#include "runtime/engine/kv_cache.h"
#include "runtime/engine/model.h"
#include "runtime/engine/team.h"
#include "runtime/engine/weight_store.h"

namespace weir {

// The form that each input takes before it meets quantised weights.
struct ActivationForms {
    kernels::Activation attn_in = kernels::Activation::kInt8;    // into q, k, v
    kernels::Activation attn_out = kernels::Activation::kInt8;   // into attn_output
    kernels::Activation ffn_in = kernels::Activation::kInt8;     // into gate, up
    kernels::Activation ffn_down = kernels::Activation::kInt8;   // into down
    kernels::Activation head = kernels::Activation::kInt8;

    static ActivationForms all(kernels::Activation form) { return {form, form, form, form, form}; }
    // What --activations int8 means: see forward.cc for what was measured.
    static ActivationForms product();
};

// Tokens that follow one another in one sequence, appended to its cache; logits are computed for the last `logit_rows`.
struct SequencePart {
    KvCache* cache;
    std::span<const int32_t> ids;
    size_t logit_rows = 0;
    double* hidden_sum = nullptr;  // [dim] the last hidden states of its tokens, normalised as for the head, are added in order
};

class Forward {
  public:
    // All references must outlive the Forward. `cache` is the sequence of passes that name none.
    Forward(const Model& model, WeightStore& store, KvCache& cache, Team& team, const kernels::KernelSet& kernels,
            const ActivationForms& forms, size_t max_batch, size_t max_logit_rows = 1);

    // Appends each part at its cache's length and computes them together; no cache may come twice. Returns the rows of logits
    // that were asked for, part after part, [rows, n_vocab], valid until the next pass; where there are none the head is not
    // read. next_follows: another pass comes right after. head: nullptr, or what is to be the head in the place of the model's, a
    // matrix that lies apart and of no more rows; n_vocab is then the number of its rows.
    std::span<const float> pass(std::span<const SequencePart> parts, bool next_follows, const Matrix* head = nullptr);
    std::span<const float> pass(std::span<const int32_t> ids, size_t logit_rows, bool next_follows) {
        const SequencePart part{&cache_, ids, logit_rows};
        return pass({&part, 1}, next_follows);
    }

    // Is shown what matrices take in: a token's row, before it is rounded, and the first of the matrices that share it. Called by
    // all workers at once, a row by one.
    class InputWatch {
      public:
        virtual ~InputWatch() = default;
        virtual void see(const Matrix& first, size_t token, std::span<const float> row) noexcept = 0;
    };
    void watch_inputs(InputWatch* watch) { watch_ = watch; }

    // The residual stream of a pass of n tokens as it enters each layer, and the head: x[layer][n][dim], n_layers + 1 of them. With
    // keep_states() passes leave it there (nullptr: they do not). pass_from() is a pass of one part that begins with a layer, by
    // what entered it; layers before it are neither read nor computed, and their KV cache is not written.
    void keep_states(float* to) { keep_states_ = to; }
    std::span<const float> pass_from(size_t first_layer, const float* states, const SequencePart& part, bool next_follows);

    // Before the first pass: what routers choose is recorded, and experts are chosen by a trace in their place. nullptr: not.
    void trace_experts(ExpertTraceWriter* to, const ExpertTraceReader* from) {
        trace_to_ = to;
        trace_from_ = from;
    }

    size_t max_batch() const { return max_batch_; }
    const kernels::KernelSet& kernels() const { return kernels_; }
    // Any thread: counts layers of all passes so far. Stands still where a pass is stuck.
    uint64_t layers_walked() const noexcept { return layers_walked_.load(std::memory_order_relaxed); }
    // Any thread: the layer that the pass under way, or the last one, has come to; n_layers: the head.
    size_t layer_under_way() const noexcept { return layer_under_way_.load(std::memory_order_relaxed); }
    size_t dim() const { return model_.config.dim; }

    // Workers of the passes to come, at most what the team was made with; any number gives the same bits.
    size_t most_workers() const { return team_.capacity(); }
    void set_workers(size_t n) { team_.resize(n); }
    size_t activation_bytes() const { return buffers_.bytes(); }

  private:
    // One matrix of a group that shares an input, or some rows of it: y[t, 0 .. rows) = W x[t].
    struct Product {
        const Matrix* w;
        float* y;
        size_t y_stride;
        const float* bias = nullptr;  // and y[t] += bias
        float soft_cap = 0;           // and y[t] = soft_cap * tanh(y[t] / soft_cap), where it is not 0
        bool to_residual = false;     // and x[t] += y[t]
        const float* scale = nullptr; // and x[t] += scale[t] * y[t]
        size_t first_row = 0;         // of w
        size_t rows = 0;              // 0: all of w
        size_t first_input = 0;       // of the rows of x
        size_t inputs = 0;            // 0: one for each token of the pass
    };
    // down(gate(gate x) * (up x))
    struct GatedBlock {
        const Matrix* gate;
        const Matrix* up;
        const Matrix* down;
        bool to_residual = true;
        const float* scale = nullptr;  // of what is added, for each token
    };
    // What the workers of one pass share.
    struct Batch {
        std::span<const SequencePart> parts;
        std::span<const int32_t> ids;  // of all parts
        size_t logit_rows;
        bool next_follows;
        const Matrix* head;
    };
    // Where a token belongs.
    struct Place {
        KvCache* cache;
        size_t position;
    };
    // Neighbouring tokens of one sequence, at most kAttentionTokens, which attend together.
    struct Neighbours {
        size_t first;  // token of the batch
        size_t count;
    };

    void lay_out(std::span<const SequencePart> parts);
    void work(size_t worker, const Batch& batch);
    bool begin(size_t worker, const Batch& batch);
    void keep_state(size_t worker, const Batch& batch, size_t index);
    bool layer(size_t worker, const Batch& batch, size_t index);
    void sum_hidden(size_t worker, const Batch& batch);
    bool head(size_t worker, const Batch& batch);

    const float* normed(size_t worker, const float* x, const std::vector<float>& weight, uint32_t stage);
    template <typename MakeRow>
    bool pack(size_t worker, size_t tokens, std::span<const Product> group, kernels::Activation form,
              const PackedRows& shared, MakeRow&& make_row);
    bool walk(size_t worker, size_t tokens, std::span<const Product> group, kernels::Activation form,
              const PackedRows& shared);
    bool walk_rows(size_t worker, size_t tokens, std::span<const Product> group, kernels::Activation form,
                   const PackedRows& x);
    struct Rows {
        const std::byte* at;   // nullptr where they cannot be had
        kernels::Level level;  // of a native file
    };
    Rows rows_of(size_t worker, const Matrix& w, size_t row, size_t rows);
    void finish(const Product& product, size_t row, size_t rows, size_t tokens);
    bool gated(size_t worker, size_t tokens, const GatedBlock& block);
    bool feed_forward(size_t worker, const Batch& batch, size_t index);
    bool mixture(size_t worker, const Batch& batch, size_t index);
    bool route(size_t worker, const Batch& batch, size_t index);
    void choose(size_t index, size_t token);
    size_t rank_experts(const float* worth, uint32_t* best) const;
    void foresee(size_t worker, const Batch& batch, size_t index);
    void tell_foreseen(size_t tokens, size_t index);
    void sort_slots(size_t tokens);
    void take_step(size_t tokens, size_t index, size_t done);
    bool pack_slots(size_t worker, const Batch& batch, size_t index, uint32_t stage);
    bool experts(size_t worker, const Batch& batch, size_t index);
    bool add_normed(size_t worker, const Batch& batch, const std::vector<float>& weight);
    bool normalise_qk(size_t worker, const Batch& batch, size_t index);
    bool append(size_t worker, const Batch& batch, size_t index);
    bool attend(size_t worker, const Batch& batch, size_t index);

    void rotate(float* head_row, size_t token, size_t rope) const;
    void append_row(size_t index, size_t kv_head, size_t token);
    size_t unit_rows(const Matrix& matrix, std::span<const Product> group) const;
    bool meet();
    void report_not_finite(uint32_t stage);
    void abandon();

    const Model& model_;
    WeightStore& store_;
    KvCache& cache_;
    Team& team_;
    const kernels::KernelSet& kernels_;
    const ActivationForms forms_;
    const size_t max_batch_;
    const size_t max_logit_rows_;
    ActivationBuffers buffers_;
    // The batch under way, token by token; room for the largest is there from the start.
    std::vector<int32_t> ids_;
    std::vector<Place> places_;
    std::vector<Neighbours> neighbours_;
    std::vector<size_t> logit_tokens_;
    // What the pass uses of a layer's experts, in the order in which they are computed, and the step [first, end) of them that
    // is under way. Set by worker 0, then by whoever meets the others last.
    std::vector<uint32_t> experts_;
    size_t first_of_step_ = 0;
    size_t end_of_step_ = 0;
    bool foresees_ = false;  // the next layer's experts are to be foretold
    std::vector<Product> expert_inputs_;   // gate and up of the step's experts
    std::vector<Product> expert_outputs_;  // and down

    ExpertTraceWriter* trace_to_ = nullptr;
    const ExpertTraceReader* trace_from_ = nullptr;

    std::atomic<uint64_t> layers_walked_{0};
    std::atomic<size_t> layer_under_way_{0};
    InputWatch* watch_ = nullptr;
    float* keep_states_ = nullptr;
    size_t first_layer_ = 0;        // of the pass under way
    const float* states_ = nullptr; // what enters it; nullptr: the embedding does

    bool pass_open_ = false;  // leader's: between the store's begin_pass and end_pass
    alignas(64) std::atomic<size_t> ticket_{0};  // next unit of the walk or of attention; reset at each barrier
    alignas(64) std::atomic<uint32_t> broken_stage_{0};  // where a value stopped being finite; kNone, see forward.cc
};

}  // namespace weir
