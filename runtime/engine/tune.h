// `weir calibrate --tune`: scales and minima of levels 2 and 3 of a native file by gradient descent, layer by layer,
// against what the source's layer makes of the same text (as BRECQ, Li et al. 2021, and OmniQuant, Shao et al. 2024, go
// block by block). A layer at a level takes in what the tuned layers before it give at that level; its output is held
// against that of the source's layer, which takes in what the source's layers give: so a layer makes good what those
// before it did.
//
// The head comes last, against the distributions that the source has (runtime/engine/tune_head.h).
//
// Codes, norms and the scales of level 4, which levels 6 and 8 refine, stay as they are: so does what levels 4, 6 and 8
// answer.
//
// One pass over the samples for each layer and level, in the order in which they come; the same input gives the same
// bits, whatever the number of threads. Memory: two layers in float (the source's and the level's), and the activations
// of `batch` samples; what enters and leaves layers is in the TuneJournal.
//
// Called by the team's owner. Throws Error.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/model.h"
#include "runtime/engine/tune_block.h"
#include "runtime/engine/tune_head.h"
#include "runtime/engine/tune_journal.h"
#include "runtime/engine/tune_products.h"
#include "runtime/engine/tune_scales.h"
#include "runtime/model/native_rescale.h"
#include "runtime/model/tokenizer.h"

namespace weir {

struct TuneOptions {
    std::vector<kernels::Level> levels = {kernels::Level::k3, kernels::Level::k2};  // of these two
    size_t tokens = 128;                                                            // of a sample
    size_t batch = 8;                                                               // samples of a step
    size_t head_tokens = 16;  // of a sample, its last, that the head is tuned on
    float rate = 2e-3f;       // of a step at most, of a group's scale
};

// A step of a layer and level, or a pass without steps; mean over tokens of |y - truth|^2 / |truth|^2, or of the head's
// KL divergence.
struct TuneProgress {
    size_t layer = 0;    // n_layers: the head
    size_t level = 0;    // of TuneOptions::levels; as many as there are: the source's layer
    bool moves = false;  // scales, after each batch
    size_t samples = 0;  // so far
    double error = 0;    // of the batch
};

class Tuner {
  public:
    struct Models {
        const Model* source;
        WeightStore* source_store;
        const GgufFile* native;
        WeightStore* native_store;  // for rows of the embedding, at the highest level
    };
    // ids: [samples, tokens]. journal: made with key(), stream_bytes() and so on.
    Tuner(const Models& models, const TuneProducts& products, std::span<const TokenId> ids, const TuneOptions& options,
          TuneJournal& journal);

    static uint64_t stream_bytes(const ModelConfig& config, size_t samples, const TuneOptions& options);
    static size_t streams(const TuneOptions& options) { return options.levels.size() + 1; }
    static uint64_t scale_bytes(const GgufFile& native, const TuneOptions& options);
    // Of memory, at most.
    static uint64_t bytes(const ModelConfig& config, const TuneOptions& options, size_t workers);

    // Layers, and the head where it is in planes.
    size_t layers() const;
    // The next of them. go_on is told after each batch and may end the tuning with an exception.
    using GoOn = std::function<void(const TuneProgress&)>;
    void tune_layer(const GoOn& go_on);

    // About how long what is left will take, by a batch of the first layer and one of the head.
    double seconds_left();

    // For write_rescaled(), when all layers are done.
    void new_scales(size_t part, uint64_t band, size_t run, std::span<std::byte> scales) const;

  private:
    struct Student {
        std::vector<TuneScales> scales;  // of the layer's matrices in planes
        std::vector<size_t> parts;       // which matrices those are
        BlockWeights weights;
    };
    void load_truth(size_t layer, BlockWeights* out) const;
    Student load_student(size_t layer, size_t level) const;
    void refresh(Student* student) const;
    void tune_block(size_t layer, const GoOn& go_on);
    void tune_head(const GoOn& go_on);
    double head_batch(TuneHead& head, const TuneScales& scales, size_t level, size_t first, size_t count,
                      const TuneHead::See& see);
    TuneScales load_scales(const NativePart& part, size_t level) const;
    void keep_tuned(const NativePart& part, size_t level, const TuneScales& scales);
    double step(size_t layer, Student* student, size_t number, size_t steps, size_t windows);
    void embed();
    void keep_scales();
    size_t samples() const { return ids_.size() / options_.tokens; }
    const NativePart* native_part(const Matrix& matrix) const;
    uint64_t scales_at(size_t level, size_t part) const;

    const Models models_;
    const TuneProducts& products_;
    const std::span<const TokenId> ids_;
    const TuneOptions options_;
    TuneJournal& journal_;
    const FileInput input_;
    TuneBlock block_;
    std::vector<float> x_, y_, truth_;  // [batch * tokens, dim]
};

}  // namespace weir
