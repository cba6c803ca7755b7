// Every buffer of the forward pass, laid out once for the largest batch. Counting and laying out are the same code, so
// that the bytes promised to the budget are the bytes taken.
//
// Threads: made by main; who writes what in a pass is said in forward.cc. Throws Error where sizes do not fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/model/config.h"

namespace weir {

// Tokens of a batch that the next layer's experts are foretold from: with 32 of 8 experts among 64, an expert that a tenth of
// the tokens use is missed once in thirty.
constexpr size_t kForeseenTokens = 32;

struct BufferShape {
    size_t batch = 512;      // tokens of one pass at most
    size_t logit_rows = 1;   // rows of logits that one pass may be asked for
    size_t n_ctx = 4 << 10;
    size_t workers = 1;
};

// Rows of activations as matrices read them: as floats for float weights, as quantised blocks for the others. A group
// of matrices with one input may want both.
struct PackedRows {
    std::byte* f32 = nullptr;
    std::byte* quantized = nullptr;
    size_t f32_stride = 0;
    size_t quantized_stride = 0;
};

struct WorkerBuffers {
    float* row = nullptr;        // [max(dim, widest_ffn)] a normalised or gated row on its way into packed form
    float* attention = nullptr;  // [attention_scratch()]
    PackedRows ahead;            // [1, dim] the input of a layer's router, before its time
    float* ahead_router = nullptr;  // [n_experts] and what it says
    PackedRows packed;           // [1, max(dim, q_dim, widest_ffn)] the one row of a decode step, packed by every worker for itself
};

class ActivationBuffers {
  public:
    static size_t bytes(const ModelConfig& config, const BufferShape& shape);

    ActivationBuffers(const ModelConfig& config, const BufferShape& shape);
    ~ActivationBuffers();
    ActivationBuffers(const ActivationBuffers&) = delete;
    ActivationBuffers& operator=(const ActivationBuffers&) = delete;

    size_t bytes() const { return bytes_; }

    float* x = nullptr;         // [batch, dim] the residual stream
    float* y = nullptr;         // [batch, dim] what a sub-layer adds to it
    float* q = nullptr;         // [batch, q_dim] queries; attention leaves its result in their place
    float* k = nullptr;         // [batch, kv_dim]
    float* v = nullptr;         // [batch, kv_dim]
    float* gate = nullptr;      // [batch, ffn_dim], or of slots
    float* up = nullptr;        // [batch, up_stride(ffn_dim)], or of slots
    PackedRows packed;          // [batch, max(dim, q_dim)]
    float* rope_cos = nullptr;  // [n_ropes, batch, rope_dims / 2]
    float* rope_sin = nullptr;  // [n_ropes, batch, rope_dims / 2]
    float* logits = nullptr;    // [logit_rows, n_vocab]
    std::vector<WorkerBuffers> workers;

    // With experts. A slot is what one token has one of its experts compute; slots are sorted by expert.
    float* router = nullptr;           // [batch, n_experts]
    uint32_t* chosen = nullptr;        // [batch, n_experts_used] a token's experts, ascending
    float* chosen_weight = nullptr;    // [batch, n_experts_used]
    uint32_t* slot = nullptr;          // [batch, n_experts_used] where its result lies
    uint32_t* first_slot = nullptr;    // [n_experts + 1] of each expert
    float* shared_weight = nullptr;    // [batch]
    std::byte* packed_slots = nullptr; // [slots, dim] in one form
    float* slot_out = nullptr;         // [slots, dim]
    uint32_t* foreseen = nullptr;      // [kForeseenTokens, n_experts_used] of the next layer, the likeliest first
    uint32_t* foreseen_of_layer = nullptr;  // [n_experts] together, the most often foreseen first
    uint32_t* foreseen_count = nullptr;     // [n_experts]

    // Floats of a row of `up`: ffn_dim, and what makes it fit in packed form.
    static size_t up_stride(size_t ffn_dim);
    // Gated rows, packed in the place of `up`, whose rows are spent then.
    PackedRows packed_ffn(size_t ffn_dim) const;

  private:
    // Places all buffers from `base` on and returns their end; with base nullptr it only counts.
    size_t lay_out(const ModelConfig& config, const BufferShape& shape, std::byte* base);
    ActivationBuffers() = default;

    size_t bytes_ = 0;
    std::byte* base_ = nullptr;
};

}  // namespace weir
