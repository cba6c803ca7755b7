// What all ways of paging share: the file, the walk, look-up of matrices by name, small tensors read once, and the
// check that the file is still the one that was opened.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pager/file.h"
#include "pager/layout.h"
#include "runtime/engine/weight_store.h"
#include "runtime/model/model_map.h"

namespace weir {

// What a paged store tells its pager ahead: which units of the walk (Extents, steps) this pass and the next will touch.
// Nothing is said twice. Ordinals ascend over all passes, see pager.h.
class Announcements {
  public:
    struct Run {
        size_t first;
        size_t count;
    };

    Announcements() = default;
    // runs: of units that every pass touches, ascending; the others are announced by also().
    Announcements(size_t units, size_t units_without_head, std::vector<Run> runs)
        : units_(units), without_head_(units_without_head), runs_(std::move(runs)) {}
    Announcements(size_t units, size_t units_without_head) : Announcements(units, units_without_head, {{0, units}}) {}

    // plan(ordinal, first, count) is called for what was not announced yet.
    template <typename Plan>
    void begin_pass(bool with_head, bool next_follows, Plan&& plan) {
        also_ = 0;
        with_head_ = with_head;
        next_follows_ = next_follows;
        for (size_t next = 0; next < (next_follows ? 2 : 1); ++next) {
            const size_t until = with_head ? units_ : without_head_;
            for (const Run& run : runs_) {
                const size_t first = std::max(run.first, announced_[next]), end = std::min(run.first + run.count, until);
                if (first < end) plan((pass_ + next) * units_ + first, first, end - first);
            }
            announced_[next] = std::max(announced_[next], until);
        }
    }
    // Units [first, first + count) will be touched in this pass, by ascending calls; those in runs were announced.
    template <typename Plan>
    void also(size_t first, size_t count, Plan&& plan) {
        const size_t end = first + count;
        for (size_t at = std::max(first, also_); at < end;) {
            const auto run = std::partition_point(runs_.begin(), runs_.end(), [at](const Run& r) { return r.first + r.count <= at; });
            if (run != runs_.end() && run->first <= at) {
                at = run->first + run->count;
                continue;
            }
            const size_t until = run == runs_.end() ? end : std::min(end, run->first);
            plan(ordinal(at), at, until - at);
            at = until;
        }
        also_ = std::max(also_, end);
    }
    // Inside a pass, when what was announced from unit `from` on was forgotten: of them it will touch these. The next pass is
    // announced once more as it was.
    template <typename Plan>
    void announce_anew(size_t from, std::span<const Run> runs, Plan&& plan) {
        const size_t until = with_head_ ? units_ : without_head_;
        for (const Run& run : runs) {
            const size_t first = std::max(run.first, from), end = std::min(run.first + run.count, until);
            if (first < end) plan(ordinal(first), first, end - first);
        }
        announced_[1] = 0;
        begin_pass(with_head_, next_follows_, plan);
    }
    // Between passes: from now on these are the units that every pass touches.
    void set_runs(std::span<const Run> runs) {
        runs_.reserve(units_);  // the first time, so that a change takes no memory later
        runs_.assign(runs.begin(), runs.end());
        announced_[0] = 0;  // what was said of the next pass was of others
    }
    void end_pass() {
        ++pass_;
        announced_[0] = announced_[1];
        announced_[1] = 0;
    }
    uint64_t ordinal(size_t unit) const { return pass_ * units_ + unit; }

  private:
    size_t units_ = 0;
    size_t without_head_ = 0;
    uint64_t pass_ = 0;
    size_t announced_[2] = {0, 0};  // of this pass and of the next
    bool with_head_ = true, next_follows_ = false;  // as this pass began
    std::vector<Run> runs_;
    size_t also_ = 0;  // units below it have been announced by also() in this pass
};

class StoreBase : public WeightStore {
  public:
    StoreBase(const GgufFile& file, const ModelConfig& config, const StoreOptions& options);

    const Matrix& matrix(const std::string& name) const override;
    std::vector<float> vector(const std::string& name) const override;
    void use_plan(const sched::Plan& plan) override;
    uint64_t copy_rows(const std::string& name, std::span<const int32_t> rows, kernels::Level level,
                       const std::array<std::byte*, kernels::kPlanes>& to) override;

  protected:
    // Fills the look-up: pointers by place in the image, or by offset in the file. places: of the map's tensors, where the
    // walk is cut in another way than the map's.
    void bind_by_place(const std::byte* image);
    // The matrix is one of experts in slots: expert_rows() of each from first_group on.
    void bind_experts(const std::string& name, size_t n_experts, uint32_t first_group, uint32_t part);
    void bind_by_offset(const std::byte* file_image, std::span<const uint64_t> places = {});

    // Throws Error where a file has changed or shrunk since it was opened.
    void check_unchanged() const;
    // Reads [offset, offset + bytes) of a part into out with plain reads. Throws Error.
    void read_exactly(uint64_t offset, void* out, size_t bytes) const;

    // Where an embedding row lies in the file: in one piece, or in one for each plane of the highest level.
    struct EmbeddingRow {
        struct Piece {
            uint64_t offset;
            uint64_t bytes;
            kernels::Plane plane;
        };
        std::array<Piece, kernels::kPlanes> pieces = {};
        size_t n = 0;
        uint8_t fine_steps = kernels::kMostFineSteps;
        std::span<const Piece> all() const { return {pieces.data(), n}; }
    };
    // Throws Error for an id outside the vocabulary.
    EmbeddingRow embedding_row(int32_t id) const;
    // The most pieces that a row has, and bytes that one has.
    size_t embedding_pieces() const;
    uint64_t longest_embedding_piece() const;
    // A row as floats from its pieces' bytes, in their order.
    void decode_embedding(const EmbeddingRow& row, const std::byte* const* bytes, float* out) const;
    // The same by plain reads.
    void read_embedding(int32_t id, float* out);

    // map_cells() where the walk is cut into units of so many bytes; 0: each cell is one. places: see bind_by_offset().
    std::vector<MapCell> cells_of(uint64_t unit_bytes, std::span<const uint64_t> places = {}) const;

    const sched::Plan& plan() const { return plan_; }  // as StoreStats has it
    // Of all matrices, and of experts among them, as the plan in force reads them.
    const PlanBytes& walk_bytes() const { return walk_bytes_; }
    uint64_t row_bytes() const { return embedding_row_bytes_; }
    // Offset in the file of an embedding row that lies in one piece. Throws Error for an id outside the vocabulary.
    uint64_t embedding_offset(int32_t id) const;
    // Bytes that one token touches: the walk, and one row of an embedding that the walk does not hold.
    uint64_t pass_bytes() const;
    // Of one expert, mean over the layers; 0 where there are none.
    uint64_t expert_bytes() const;

    const GgufFile& gguf_;
    const ModelConfig config_;
    const StoreOptions options_;
    const std::vector<pager::File> files_;  // the model's, one or its parts
    const pager::FileParts parts_;          // of them
    ModelMap map_;
    const kernels::KernelSet* scalar_;  // for the few rows that the store converts itself

  private:
    void bind(const std::byte* base, bool by_place, std::span<const uint64_t> places);
    void bind_part(const PlacedTensor& placed);
    void set_level(Matrix* matrix, size_t first_band, const PlacedTensor& placed, kernels::Level level) const;
    const std::byte* run_at(const PlacedTensor& placed, uint64_t band, size_t run) const;
    void check_token(int32_t id) const;
    const NativePart* embedding_part() const;  // nullptr where its rows lie in one piece

    std::map<std::string, Matrix> matrices_;
    const std::byte* base_ = nullptr;  // of the image, or of the file
    bool by_place_ = false;            // the image
    sched::Plan plan_;
    PlanBytes walk_bytes_;
    uint64_t embedding_row_bytes_ = 0;
    std::vector<std::byte> row_;  // of read_embedding()
};

// As StoreView has them.
std::string unit_letters(std::span<const pager::Whereabouts> units);

}  // namespace weir
