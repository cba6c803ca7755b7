#include "runtime/engine/second_moments.h"

#include <algorithm>
#include <utility>

#include "kernels/nested_learn.h"
#include "runtime/error.h"

namespace weir {

// Keeps the rows of one pass, of the inputs that a sweep takes.
class SecondMoments::Watch : public Forward::InputWatch {
  public:
    struct Rows {
        std::vector<float> rows;    // [n][cols]
        std::vector<float> across;  // [cols][n]
        size_t most;
        size_t n;
    };

    void add(const Matrix* first, size_t most) {
        kept_[first] = {std::vector<float>(most * first->cols), std::vector<float>(most * first->cols), most, 0};
    }
    void see(const Matrix& first, size_t token, std::span<const float> row) noexcept override {
        const auto it = kept_.find(&first);
        if (it == kept_.end() || token >= it->second.most) return;
        std::copy(row.begin(), row.end(), it->second.rows.begin() + static_cast<ptrdiff_t>(token * row.size()));
    }
    std::map<const Matrix*, Rows>& kept() { return kept_; }

  private:
    std::map<const Matrix*, Rows> kept_;
};

SecondMoments::SecondMoments(const Source& source, std::vector<TokenId> ids, size_t window, size_t logit_rows,
                             uint64_t memory, std::function<void(size_t, size_t)> progress)
    : source_(source),
      ids_(std::move(ids)),
      window_(window),
      logit_rows_(logit_rows),
      memory_(memory),
      progress_(std::move(progress)) {
    const Model& model = *source_.model;
    if (model.config.n_experts != 0)
        throw Error("rounding cannot be learned for experts: they see too little of a calibration text");
    for (size_t l = 0; l < model.layers.size(); ++l) {
        const Layer& layer = model.layers[l];
        for (const Matrix* const first : {layer.attn_q, layer.attn_output, layer.ffn_gate, layer.ffn_down})
            inputs_[first] = {l, {}, nullptr};
    }
    inputs_[model.head] = {model.layers.size(), {}, nullptr};
}

SecondMoments::~SecondMoments() = default;

const Matrix& SecondMoments::shared_input(const std::string& tensor) const {
    for (const Layer& l : source_.model->layers) {
        for (const Matrix* const m : {l.attn_q, l.attn_k, l.attn_v})
            if (m->name == tensor) return *l.attn_q;
        for (const Matrix* const m : {l.ffn_gate, l.ffn_up})
            if (m->name == tensor) return *l.ffn_gate;
        for (const Matrix* const m : {l.attn_output, l.ffn_down})
            if (m->name == tensor) return *m;
    }
    if (source_.model->head->name == tensor) return *source_.model->head;
    throw Error("the inputs of " + tensor + " are not looked at: rounding cannot be learned for it");
}

SecondMoments::Shared SecondMoments::feedback(const std::string& tensor) {
    const Matrix& first = shared_input(tensor);
    Input& input = inputs_.at(&first);
    if (input.feedback != nullptr) return input.feedback;
    if (input.moments.empty()) sweep(input.layer);
    // Callers go on in execution order: what is two layers back will hardly be asked for again.
    for (auto& [matrix, other] : inputs_)
        if (other.layer + 1 < input.layer) other.feedback = nullptr;
    // Rows of a head that is the embedding are looked up as well, and those errors nothing makes good.
    const bool embeds = &first == source_.model->head && source_.model->config.tied_head;
    std::optional<kernels::Feedback> feedback =
        kernels::feedback_of(*source_.kernels, first.cols, std::exchange(input.moments, {}),
                             embeds ? kernels::kMoreFineSteps : kernels::kFewestFineSteps);
    if (!feedback)
        throw Error("the inputs of " + first.name +
                    " on the calibration text are not finite: rounding cannot be learned from them");
    input.feedback = std::make_shared<const kernels::Feedback>(std::move(*feedback));
    return input.feedback;
}

// y[i][j] += sum over the window of x[t][i] x[t][j], j >= i, in rows of 16.
void SecondMoments::sweep(size_t first_layer) {
    constexpr size_t kRows = 16;
    ++sweeps_;
    Watch watch;
    uint64_t taken = 0;
    for (size_t layer = first_layer; layer <= source_.model->layers.size(); ++layer) {
        uint64_t bytes = 0;
        for (const auto& [matrix, input] : inputs_)
            if (input.layer == layer) bytes += uint64_t{matrix->cols} * matrix->cols * sizeof(float);
        if (layer > first_layer && taken + bytes > memory_) break;
        taken += bytes;
        for (auto& [matrix, input] : inputs_) {
            if (input.layer != layer) continue;
            input.moments.assign(matrix->cols * matrix->cols, 0.0f);
            watch.add(matrix, matrix == source_.model->head ? logit_rows_ : window_);
        }
    }
    struct Watching {
        Forward* forward;
        ~Watching() { forward->watch_inputs(nullptr); }
    } const watching{source_.forward};
    source_.forward->watch_inputs(&watch);
    const size_t windows = ids_.size() / window_;
    for (size_t w = 0; w < windows; ++w) {
        source_.cache->set_length(0);
        (void)source_.forward->pass(std::span<const TokenId>(ids_).subspan(w * window_, window_), logit_rows_,
                                    w + 1 < windows);
        std::vector<std::pair<const Matrix*, size_t>> work;  // an input and its first row
        for (auto& [matrix, rows] : watch.kept()) {
            for (size_t t = 0; t < rows.most; ++t)
                for (size_t i = 0; i < matrix->cols; ++i)
                    rows.across[i * rows.most + t] = rows.rows[t * matrix->cols + i];
            for (size_t i = 0; i < matrix->cols; i += kRows) work.emplace_back(matrix, i);
        }
        source_.team->run([&](size_t worker) {
            for (size_t n = worker; n < work.size(); n += source_.team->size()) {
                const auto [matrix, i] = work[n];
                const Watch::Rows& rows = watch.kept().at(matrix);
                const size_t cols = matrix->cols, from = i / 8 * 8;
                float* const y = inputs_.at(matrix).moments.data() + i * cols + from;
                source_.kernels->multiply_add(kernels::Type::kF32, rows.across.data() + i * rows.most, rows.most,
                                              std::min(kRows, cols - i), rows.rows.data() + from, cols, 8, rows.most,
                                              cols - from, y, cols);
            }
        });
        progress_(w + 1, windows);
    }
}

}  // namespace weir
