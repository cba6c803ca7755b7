// The walk: which matrices one pass touches, in execution order, and where each lies in a linear image of them. File
// order is not execution order (token_embd first, ffn_down before attention), so the image gathers the file's bytes in
// the order in which the decoder reads them. Reads are aligned outward: a tensor lies in the image at the same offset
// within a page as in the file, and neighbours in both orders share their page.
//
// Input embedding rows are not part of the walk: they are read by row. A tied head is.
//
// Of a native file the image gathers the runs that the plans in use read, band after band, and nothing else: what is not in it
// is never read. Matrices of experts come as parts, one an expert, in the order in which the decoder takes them. A paged store
// may lay the runs out in memory in another way than in the image, whose places then only say what comes when.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/gguf.h"
#include "runtime/model/native_format.h"
#include "schedtool/plan.h"

namespace weir {

// Rows of a native part: bytes [place, place + bytes) of the image hold all their planes that any plan reads.
struct PlacedBand {
    uint64_t place = 0;
    uint64_t bytes = 0;
    std::array<uint64_t, kRuns> run_place = {};  // of those
    std::array<uint64_t, kRuns> run_at = {};     // where in memory: as run_place, unless they were laid out otherwise
};

struct PlacedTensor {
    const GgufTensor* tensor = nullptr;  // in the GgufFile, which must outlive the map
    uint64_t place = 0;                  // of its first byte in the image
    uint64_t at = 0;                     // of it in memory, likewise; of what is stored whole
    bool experts = false;                // of which a token touches a few
    size_t layer = 0;                    // n_layers: the head
    uint64_t bytes = 0;                  // from its first byte to its last in the image
    uint64_t piece_bytes = 0;            // the longest stretch that is needed at once: a row, or a band
    const NativePart* part = nullptr;    // of the file's table, where it is in planes, and its bands
    std::vector<PlacedBand> bands;
    size_t shard = 0;                    // that it belongs to, see schedtool/plan.h
    uint8_t runs = 0;                    // bits: those that the image has

    bool has_run(size_t run) const { return (runs >> run & 1) != 0; }
    // What a level reads of a band: one stretch of the image, from the first of its runs to the last. A run of another plan
    // that lies between them is read as well.
    struct Stretch {
        size_t first_run;
        uint64_t place;
        uint64_t bytes;
    };
    Stretch stretch(size_t band, kernels::Level level) const;
};

struct PlacedRange {
    uint64_t place = 0;  // page-aligned, as are the other two
    uint64_t file_offset = 0;
    uint64_t bytes = 0;
};

struct ModelMap {
    std::vector<PlacedTensor> tensors;  // in execution order
    std::vector<PlacedRange> ranges;    // what fills the image, ascending by place, without gaps
    uint64_t image_bytes = 0;
    uint64_t head_place = 0;            // where the head begins: passes without logits stop here
    uint64_t weights_bytes = 0;         // of the matrices themselves, in all runs
    uint64_t expert_bytes = 0;          // of these, of experts
    const GgufTensor* embedding = nullptr;
};

// page: the granule of reads and mappings, a power of two. experts_apart: experts have no place in the image; whoever reads
// them reads one by one (plain GGUF). plans: that may be in force, of a native file; none: level 8.
ModelMap build_model_map(const GgufFile& file, const ModelConfig& config, uint64_t page, bool experts_apart = false,
                         const std::vector<sched::Plan>& plans = {});

// Which shard a matrix of a layer belongs to, by the end of its tensor's name.
sched::Module module_of(std::string_view layer_tensor);

// Whether passes at the plan read the run of a shard's matrices.
bool reads_run(const sched::Plan& plan, size_t shard, size_t run);

// Bytes of the weights that a plan reads, padding left out; and of those of experts among them.
struct PlanBytes {
    uint64_t weights = 0;
    uint64_t experts = 0;
};
PlanBytes plan_bytes(const ModelMap& map, const sched::Plan& plan);

}  // namespace weir
