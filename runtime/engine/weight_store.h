// Where the engine's weights are, and the one place that knows how they get there. The engine sees matrices as plain
// pointers that never change; before it reads a stretch of them it acquires it, and when it will not touch it again
// in this pass it releases it. With --paging mmap and resident both cost nothing; with uffd the first waits at the
// pager's gate and the second moves the Position that prefetch and eviction follow; advised, which is the same over a
// file mapping, stands in for uffd where userfaultfd is not to be had.
//
// The file must stay as it is while it is in use: that is looked at when a pass begins and when it ends, in all modes, so
// that no token is made of bytes that changed.
//
// A pass is one walk over the weights in execution order, for a batch of tokens. Threads: open(), begin_pass(),
// end_pass(), embedding_rows() and stats() belong to the leader; acquire() and release() to each worker with its own
// index. No worker may be inside a pass when the store is destroyed.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/model/config.h"
#include "runtime/model/gguf.h"
#include "schedtool/plan.h"

namespace weir {

enum class PagingMode : uint8_t { kUffd, kAdvised, kMmap, kResident };
const char* paging_mode_name(PagingMode mode);
// True where the weights are paged by us, into frames that a budget counts.
constexpr bool pages_by_budget(PagingMode mode) { return mode == PagingMode::kUffd || mode == PagingMode::kAdvised; }

// One matrix of the model as the engine reads it: row r lies at data + r * row_bytes; or, of a native file, in the planes of
// its band.
struct Matrix {
    struct Stretch {
        uint64_t place;
        uint64_t bytes;
    };
    struct Band {
        kernels::NestedRows rows;
        Stretch stretch;  // of all its planes
        const std::byte* first = nullptr;
    };

    std::string name;             // the tensor's, for messages
    kernels::Type type = kernels::Type::kF32;
    size_t rows = 0;              // outputs
    size_t cols = 0;              // inputs
    size_t row_bytes = 0;
    const std::byte* data = nullptr;
    uint64_t place = 0;           // of row 0 in the walk: bytes, ascending in execution order, one slot per extent_bytes()
    // Of experts that lie in slots: rows of one expert, the first expert's group and which part of a group. Else 0; data is
    // nullptr then, and expert_rows() says where rows are.
    size_t expert_rows = 0;
    uint32_t first_group = 0;
    uint32_t part = 0;

    std::vector<Band> bands;      // part after part; empty where rows lie one behind the other. row_bytes is what the level
                                  // reads of a row then, and data is nowhere.
    kernels::Level level = kernels::Level::k8;  // by the plan in force
    size_t band_rows = 0;         // 0: no bands
    size_t part_rows = 0;         // an expert's; bands do not lie across parts
    bool apart = false;           // in memory of its own, no store's: nobody acquires or releases it

    // The form in which activations meet it.
    kernels::Activation form(kernels::Activation wanted) const {
        return bands.empty() ? kernels::activation_for(type, cols, wanted) : wanted;
    }
    // What must be there while these rows are computed: their bytes, or those of their bands.
    Stretch stretch(size_t first_row, size_t n) const;
    // Where a row is, or the first byte of its band.
    const std::byte* rows_at(size_t row) const;
    // y = W x for rows at `weights`, which lie in one band where there are bands, as KernelSet::matmul has it.
    // at: of rows in bands, the level, whose planes are there; its own or a lower one.
    void multiply(const kernels::KernelSet& kernels, kernels::Activation packed, const std::byte* weights, kernels::Level at, size_t first_row,
                  size_t n, const std::byte* x, size_t x_stride, size_t tokens, float* y, size_t y_stride) const;

  private:
    size_t band_of(size_t row) const {
        return row / part_rows * ((part_rows + band_rows - 1) / band_rows) + row % part_rows / band_rows;
    }
};

// What became of the experts that routers chose, where they lie in slots of their own. Counts since the start.
struct ExpertStats {
    uint64_t uses = 0;           // by a pass and layer
    uint64_t here = 0;           // of these, in memory when the router chose, and not because of a prediction
    uint64_t foreseen = 0;       // whose read a prediction had begun
    uint64_t absent_bytes = 0;   // of the others and the foreseen: to be read by any reader
    uint64_t predictions = 0;       // made
    uint64_t right_predictions = 0; // of these, that the router then chose
    uint64_t predictions_read = 0;  // that a read was begun for
    uint64_t busy_us = 0;        // in which experts were being read
    size_t slots = 0;            // that hold memory
    uint64_t slot_bytes = 0;
    double read_amplification = 0;  // bytes read for an expert to its own
    double slot_waste = 0;          // share of a slot that holds no expert's byte, mean over all experts
};

struct StoreStats {
    PagingMode mode = PagingMode::kResident;
    sched::Plan plan;                // in force, of a native file; empty: plain GGUF
    uint64_t weights_bytes = 0;      // of all matrices that a pass walks, as the plan in force reads them
    uint64_t expert_bytes = 0;       // of one expert, mean; 0 where there are none
    uint64_t pass_bytes = 0;         // M: weights that one token touches, an untied embedding counting one row
    uint64_t resident_bytes = 0;     // R: pinned
    uint64_t ring_bytes = 0;
    uint64_t frame_bytes = 0;        // all frames: what the weights may take
    uint64_t extent_bytes = 0;
    uint64_t bytes_read = 0;         // by the store so far
    uint64_t must_read_bytes = 0;    // M - R of each pass so far, with R as it was: what no reader could have spared (without experts)
    uint64_t faults = 0;
    uint64_t waits = 0;              // gate waits
    uint64_t stall_us = 0;           // of the team, in gates; the first worker's, which takes part in every pass
    uint64_t pager_cpu_us = 0;       // of the pager thread
    double extents_in_flight = 0;    // mean while anything was being read
    uint64_t budget_changes = 0;     // of frame_bytes, since the start
    uint64_t refined_units = 0;      // parts of matrices with a refinement that a worker took in passes with a deadline
    uint64_t late_units = 0;         // of these, whose refinement came too late
    uint64_t late_passes = 0;        // that had some of those
    uint64_t read_retries = 0;       // reads that failed and were tried again
    uint64_t buffered_rereads = 0;   // of these, through the page cache
    uint64_t copied_moves = 0;       // Extents that could not be moved into place and were copied, populated anew or read again
    ExpertStats experts;
    std::string rungs;               // "uffd=user-mode-only install=move reader=io_uring io=direct"
};

struct StoreOptions {
    PagingMode mode = PagingMode::kUffd;
    std::vector<sched::Plan> plans;  // of a native file: those that may be in force, the first to begin with; none: level 8
    uint64_t frame_bytes = 0;        // what the pages of the weights may take (uffd, advised); ignored otherwise
    size_t workers = 1;
    bool gates = true;
    std::string uffd_source = "auto";  // auto, user-mode-only, device, syscall
    std::string install = "auto";    // auto, move, copy
    std::string reader = "auto";     // auto, io_uring, pread
    std::string io = "auto";         // auto, direct, buffered
    std::string trace_io;            // a file that will list all reads (uffd)
    uint64_t io_limit_mbps = 0;      // read no faster than this, millions of bytes a second (uffd); 0: as fast as can be
    bool progress = false;           // on stderr, for a resident load of more than a second
    std::function<void(uint64_t done, uint64_t whole)> on_progress;  // told beside it, after each read
};

// The walk as a map, for whoever looks on. A unit is what comes and goes as one: an Extent, a step of the advised mapping, an
// expert in a slot; where nothing comes and goes, all that a cell has. Neighbours may share a unit.
struct MapCell {
    size_t layer = 0;        // n_layers: the head
    std::string_view module; // as sched::kModuleNames has it, "experts", or "head"
    size_t shard = 0;        // see schedtool/plan.h; of experts, that of their first matrix
    size_t first_unit = 0;
    size_t units = 0;
    uint64_t weights = 0;    // how many
    uint64_t bytes = 0;      // of them, in the file
};

// What is where at one moment, and counts since the start.
struct StoreView {
    std::string units;         // a letter each: R stays, s passes, r is being read, . absent, k as the kernel pleases
    uint64_t bytes_read = 0;
    uint64_t read_us = 0;      // in which something was being read; 0 where nobody can tell
    uint64_t stall_us = 0;
    uint64_t waits = 0;
    uint64_t faults = 0;
    uint64_t frame_bytes = 0;  // what the weights may take now
};

class WeightStore {
  public:
    virtual ~WeightStore() = default;

    // Reads nothing but what the mode needs to begin. Throws Error or UsageError.
    static std::unique_ptr<WeightStore> open(const GgufFile& file, const ModelConfig& config,
                                             const StoreOptions& options);

    // A tensor of two dimensions that the walk visits, by name; Error where there is none.
    virtual const Matrix& matrix(const std::string& name) const = 0;
    // A small tensor, read and converted once: norm weights, rope factors. Error where there is none.
    virtual std::vector<float> vector(const std::string& name) const = 0;

    // Leader, between passes: another of the plans of StoreOptions, or one made of their levels, is in force from the next pass
    // on. Error for a level of a shard that none of them has.
    virtual void use_plan(const sched::Plan& plan) = 0;

    // Leader, between passes: passes from now on have so long, each from its begin; zero: as long as it takes. What refines a
    // matrix beyond kBaseLevel and has not come by then is done without, see refined(). Nothing comes late where nothing is paged
    // by planes.
    static constexpr kernels::Level kBaseLevel = kernels::Level::k4;
    virtual void set_deadline(std::chrono::microseconds) {}

    // Leader: a pass begins; without the head its matrix will not be visited. next_follows: another pass with the same
    // shape is expected right after, so its first weights may be read ahead. Checks that the file is still the same:
    // Error where it changed or shrank.
    virtual void begin_pass(bool with_head, bool next_follows) = 0;
    // Leader, inside a pass, when a router has chosen: bytes [place, place + bytes) of an expert's matrix will be touched, in
    // ascending order. What a store does not read before it is told so: where it can, it leaves experts out of what it
    // reads ahead by itself.
    virtual void announce(uint64_t, uint64_t) noexcept {}
    // Experts. Leader, when the router of a layer has chosen: these of the layer's experts, ascending, will be used in this
    // pass. They are brought into the order in which to compute them, what is here first; returns how many of them to begin
    // with. Then, by one thread while the others wait, and until it returns 0: next_experts(), when the first `done` of them
    // are done with, may change the order of the others and returns how many come next.
    virtual size_t use_experts(size_t, std::span<uint32_t> experts) noexcept { return experts.size(); }
    virtual size_t next_experts(std::span<uint32_t> experts, size_t done) noexcept { return experts.size() - done; }
    // Leader: true while a prediction of a layer's experts is of use. predict_experts(): the layer's router would choose these on
    // the hidden state of an earlier layer, the likeliest first; a wrong one costs time, nothing else.
    virtual bool wants_predictions() const noexcept { return false; }
    virtual void predict_experts(size_t, std::span<const uint32_t>) noexcept {}
    // Worker: where this row of a matrix with expert_rows lies, and those of its expert that follow; waits for it. nullptr
    // where it cannot be had any more, as acquire().
    virtual const std::byte* expert_rows(size_t, const Matrix&, size_t) noexcept { return nullptr; }
    // Leader, after begin_pass(): this worker takes no part in the pass.
    virtual void sit_out(size_t) noexcept {}
    // Leader, after every worker has left the walk. Error where the walk failed, or the file changed meanwhile.
    virtual void end_pass() = 0;

    // Leader: rows of token_embd, dequantised: out[i * dim ...] for ids[i]. Small announced reads under uffd.
    virtual void embedding_rows(std::span<const int32_t> ids, float* out) = 0;

    // Leader, between passes: copies rows of a matrix of a native file out of the file, as they lie in the planes that `level`
    // reads: rows[i] goes to to[plane] + i * plane_row_bytes(). Plain reads, beside the paging. Returns the bytes that were read, whole pages.
    // Error where the matrix has no planes or not these rows.
    virtual uint64_t copy_rows(const std::string& name, std::span<const int32_t> rows, kernels::Level level,
                               const std::array<std::byte*, kernels::kPlanes>& to) = 0;

    // Granule of the walk: a chunk that a worker acquires should not be larger. SIZE_MAX where there is no paging.
    virtual size_t extent_bytes() const = 0;
    // Worker: bytes [place, place + bytes) of the walk are needed. Returns false where the weights cannot be had any
    // more (a read failed for good, the file shrank): the pass must be abandoned, and end_pass() throws why.
    virtual bool acquire(size_t worker, uint64_t place, size_t bytes) noexcept = 0;
    // Worker, after acquire() of the same bytes: whether all is here that the plan in force reads of them. acquire() has waited
    // for what kBaseLevel reads where the pass has a deadline, and for all of it elsewhere; this waits for the rest until then.
    virtual bool refined(size_t, uint64_t, size_t) noexcept { return true; }
    // Worker: nothing before `place` will be touched by this worker again in this pass.
    virtual void release(size_t worker, uint64_t place) noexcept = 0;

    // Any thread: what the pages of the weights may take from now on. Returns what is in force, in whole Extents and no
    // less than the walk needs; 0 where the mode has no such budget.
    virtual uint64_t set_frame_bytes(uint64_t) { return 0; }

    // Any thread, one at a time: returns when whoever serves faults on the weights has answered one; never, where it does not
    // answer any more. At once where the kernel serves them.
    virtual void probe_faults() noexcept {}

    // Any thread: the map, the same for ever, and what is where on it.
    virtual std::vector<MapCell> map_cells() const = 0;
    virtual StoreView look() const = 0;

    // StoreStats::stall_us alone, cheap enough to be asked for every token. 0 where nothing is waited for.
    virtual uint64_t stall_us() const noexcept { return 0; }
    // StoreStats::bytes_read alone, likewise; 0 where somebody else reads.
    virtual uint64_t bytes_read() const noexcept { return 0; }
    // Looks at every Extent: for the beginning and the end of a measurement.
    virtual StoreStats stats() const = 0;
};

// Where mode is uffd, no userfaultfd can be had and nobody insisted on a rung of it: changes mode to advised, and returns
// why, one line. "" where everything stays as it is.
std::string fall_back(StoreOptions* options);

}  // namespace weir
