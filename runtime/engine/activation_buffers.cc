#include "runtime/engine/activation_buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/engine/attention.h"
#include "runtime/error.h"

namespace weir {
namespace {

using kernels::Activation;

// A cache line: rows of neighbouring buffers never share one.
constexpr size_t kAlignment = 64;

// Hands out stretches of one allocation, or counts them.
class Arena {
  public:
    explicit Arena(std::byte* base) : base_(base) {}

    std::byte* take(size_t rows, size_t row_bytes) {
        size_t bytes = 0;
        size_t end = 0;
        if (__builtin_mul_overflow(rows, row_bytes, &bytes) || __builtin_add_overflow(used_, bytes, &end) ||
            __builtin_add_overflow(end, kAlignment - 1, &end)) {
            throw Error("work buffers do not fit an address space");
        }
        std::byte* const at = base_ == nullptr ? nullptr : base_ + used_;
        used_ = end / kAlignment * kAlignment;
        return at;
    }
    float* floats(size_t rows, size_t cols) {
        size_t row_bytes = 0;
        if (__builtin_mul_overflow(cols, sizeof(float), &row_bytes)) {
            throw Error("work buffers do not fit an address space");
        }
        return reinterpret_cast<float*>(take(rows, row_bytes));
    }
    PackedRows packed(size_t rows, size_t cols) {
        PackedRows out;
        out.f32_stride = kernels::activation_bytes(Activation::kF32, cols);
        out.quantized_stride = std::max(kernels::activation_bytes(Activation::kInt8, cols),
                                        kernels::activation_bytes(Activation::kFine, cols));
        out.f32 = take(rows, out.f32_stride);
        out.quantized = take(rows, out.quantized_stride);
        return out;
    }
    size_t used() const { return used_; }

  private:
    std::byte* base_;
    size_t used_ = 0;
};

// Bytes of a packed row, whichever form it takes.
size_t widest_packed_row(size_t cols) {
    return std::max({kernels::activation_bytes(Activation::kF32, cols), kernels::activation_bytes(Activation::kInt8, cols),
                     kernels::activation_bytes(Activation::kFine, cols)});
}

}  // namespace

size_t ActivationBuffers::up_stride(size_t ffn_dim) { return widest_packed_row(ffn_dim) / sizeof(float); }

PackedRows ActivationBuffers::packed_ffn(size_t ffn_dim) const {
    auto* const rows = reinterpret_cast<std::byte*>(up);
    const size_t stride = widest_packed_row(ffn_dim);
    return {rows, rows, stride, stride};
}

size_t ActivationBuffers::lay_out(const ModelConfig& config, const BufferShape& shape, std::byte* base) {
    const size_t q_dim = config.q_dim();
    const size_t slots = shape.batch * config.n_experts_used;  // both far below 2^32
    Arena arena(base);
    x = arena.floats(shape.batch, config.dim);
    y = arena.floats(shape.batch, config.dim);
    q = arena.floats(shape.batch, q_dim);
    k = arena.floats(shape.batch, config.kv_dim());
    v = arena.floats(shape.batch, config.kv_dim());
    if (config.n_experts == 0) {
        gate = arena.floats(shape.batch, config.ffn_dim);
        up = arena.floats(shape.batch, up_stride(config.ffn_dim));
    } else {  // the shared expert and the others take turns
        gate = arena.floats(1, std::max(slots * config.expert_ffn_dim, shape.batch * config.shared_ffn_dim));
        up = arena.floats(1, std::max(slots * up_stride(config.expert_ffn_dim),
                                      config.shared_ffn_dim == 0 ? 0 : shape.batch * up_stride(config.shared_ffn_dim)));
        router = arena.floats(shape.batch, config.n_experts);
        chosen = reinterpret_cast<uint32_t*>(arena.take(slots, sizeof(uint32_t)));
        chosen_weight = arena.floats(slots, 1);
        slot = reinterpret_cast<uint32_t*>(arena.take(slots, sizeof(uint32_t)));
        first_slot = reinterpret_cast<uint32_t*>(arena.take(config.n_experts + 1, sizeof(uint32_t)));
        shared_weight = arena.floats(shape.batch, 1);
        packed_slots = arena.take(slots, widest_packed_row(config.dim));
        slot_out = arena.floats(slots, config.dim);
        foreseen = reinterpret_cast<uint32_t*>(arena.take(kForeseenTokens * config.n_experts_used, sizeof(uint32_t)));
        foreseen_of_layer = reinterpret_cast<uint32_t*>(arena.take(config.n_experts, sizeof(uint32_t)));
        foreseen_count = reinterpret_cast<uint32_t*>(arena.take(config.n_experts, sizeof(uint32_t)));
    }
    packed = arena.packed(shape.batch, std::max(config.dim, q_dim));
    rope_cos = arena.floats(shape.batch, config.n_ropes() * (config.rope_dims / 2));
    rope_sin = arena.floats(shape.batch, config.n_ropes() * (config.rope_dims / 2));
    logits = arena.floats(shape.logit_rows, config.n_vocab);
    workers.resize(shape.workers);
    for (WorkerBuffers& worker : workers) {
        worker.row = arena.floats(1, std::max(config.dim, config.widest_ffn()));
        worker.attention = arena.floats(1, attention_scratch(config.head_dim, config.n_heads / config.n_kv_heads));
        if (config.n_experts != 0) {
            worker.ahead = arena.packed(1, config.dim);
            worker.ahead_router = arena.floats(1, config.n_experts);
        }
        worker.packed = arena.packed(1, std::max({config.dim, q_dim, config.widest_ffn()}));
    }
    return arena.used();
}

size_t ActivationBuffers::bytes(const ModelConfig& config, const BufferShape& shape) {
    return ActivationBuffers().lay_out(config, shape, nullptr);
}

ActivationBuffers::ActivationBuffers(const ModelConfig& config, const BufferShape& shape)
    : bytes_(bytes(config, shape)) {
    // Pages come as they are touched: a short prompt never pays for the largest batch.
    void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        throw Error("work buffers: cannot map " + std::to_string(bytes_) + " bytes: " + std::strerror(errno) +
                    "; try a smaller batch (-b)");
    }
    base_ = static_cast<std::byte*>(base);
    lay_out(config, shape, base_);
}

ActivationBuffers::~ActivationBuffers() {
    if (base_ != nullptr) munmap(base_, bytes_);
}

}  // namespace weir
