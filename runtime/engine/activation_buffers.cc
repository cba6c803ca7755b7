#include "runtime/engine/activation_buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

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
                                        kernels::activation_bytes(Activation::kInt16, cols));
        out.f32 = take(rows, out.f32_stride);
        out.quantized = take(rows, out.quantized_stride);
        return out;
    }
    size_t used() const { return used_; }

  private:
    std::byte* base_;
    size_t used_ = 0;
};

}  // namespace

size_t ActivationBuffers::lay_out(const ModelConfig& config, const BufferShape& shape, std::byte* base) {
    const size_t q_dim = config.n_heads * config.head_dim;
    const size_t up_row_bytes = std::max({kernels::activation_bytes(Activation::kF32, config.ffn_dim),
                                          kernels::activation_bytes(Activation::kInt8, config.ffn_dim),
                                          kernels::activation_bytes(Activation::kInt16, config.ffn_dim)});
    Arena arena(base);
    x = arena.floats(shape.batch, config.dim);
    y = arena.floats(shape.batch, config.dim);
    q = arena.floats(shape.batch, q_dim);
    k = arena.floats(shape.batch, config.kv_dim());
    v = arena.floats(shape.batch, config.kv_dim());
    gate = arena.floats(shape.batch, config.ffn_dim);
    up_stride = up_row_bytes / sizeof(float);
    up = arena.floats(shape.batch, up_stride);
    packed = arena.packed(shape.batch, std::max(config.dim, q_dim));
    packed_ffn.f32 = packed_ffn.quantized = reinterpret_cast<std::byte*>(up);
    packed_ffn.f32_stride = packed_ffn.quantized_stride = up_row_bytes;
    rope_cos = arena.floats(shape.batch, config.n_ropes() * (config.rope_dims / 2));
    rope_sin = arena.floats(shape.batch, config.n_ropes() * (config.rope_dims / 2));
    logits = arena.floats(shape.logit_rows, config.n_vocab);
    workers.resize(shape.workers);
    for (WorkerBuffers& worker : workers) {
        worker.row = arena.floats(1, std::max(config.dim, config.ffn_dim));
        worker.scores = arena.floats(config.n_heads / config.n_kv_heads, shape.n_ctx);
        worker.packed = arena.packed(1, std::max({config.dim, q_dim, config.ffn_dim}));
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
