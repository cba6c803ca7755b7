#include "runtime/engine/compute_probe.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "kernels/quantize_weights.h"
#include "pager/mapping.h"
#include "pager/system.h"
#include "runtime/engine/units.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::Activation;

constexpr size_t kMeetings = 20;
constexpr double kMeetingSeconds = 0.005;
// A cache that the machine does not tell of is taken to have 32 MiB.
constexpr uint64_t kUsualCache = 32u << 20;
constexpr uint64_t kCacheShare = 4;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// The form in which a matrix of the walk meets its input, by its place in the model.
Activation form_of(const std::string& name, const ActivationForms& forms) {
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    if (has("attn_output")) return forms.attn_out;
    if (has("attn_")) return forms.attn_in;
    if (has("ffn_down")) return forms.ffn_down;
    if (has("ffn_")) return forms.ffn_in;
    return forms.head;
}

// Read by a worker between two looks at the clock.
constexpr size_t kReadBytes = 1u << 20;
// Asked for so far ahead of the read, as the kernels do: without it the same loop reads a sixth less.
constexpr size_t kReadAhead = 2048;
// A tile of weights and one of activations that a level-1 cache of 32 KiB nearly holds together.
constexpr size_t kDotRows = 16, kDotCols = 1024, kDotTokens = 16, kDotRounds = 64;

void fill_random(std::vector<float>& row) {
    uint32_t x = 1;
    for (float& value : row) {
        x = x * 1664525u + 1013904223u;
        value = (static_cast<float>(x >> 8) / static_cast<float>(1 << 24) - 0.5f) * 0.04f;
    }
}

// Rows of random weights, one quantised and the others the same, which a kernel cannot tell.
size_t fill(const pager::Mapping& memory, kernels::Type type, size_t cols) {
    const size_t row_bytes = kernels::row_bytes(type, cols);
    const size_t rows = std::max<size_t>(1, memory.bytes() / row_bytes);
    std::vector<float> row(cols);
    fill_random(row);
    kernels::quantize_weights(type, row.data(), memory.base(), cols);
    for (size_t r = 1; r < rows; ++r) std::memcpy(memory.base() + r * row_bytes, memory.base(), row_bytes);
    return rows;
}

// The same in planes, one behind the other; says where they are.
size_t fill_planes(const pager::Mapping& memory, kernels::Level level, size_t cols, kernels::NestedRows* planes) {
    const size_t rows = std::max<size_t>(1, memory.bytes() / kernels::level_row_bytes(level, cols));
    std::vector<std::byte> row[kernels::kPlanes];
    std::byte* into[kernels::kPlanes];
    for (size_t p = 0; p < kernels::kPlanes; ++p) {
        row[p].resize(kernels::plane_row_bytes(static_cast<kernels::Plane>(p), cols));
        into[p] = row[p].data();
    }
    std::vector<float> weights(cols);
    fill_random(weights);
    for (size_t b = 0; b * 256 < cols; ++b) {
        kernels::NestedBlock block;
        (void)kernels::fit_nested(weights.data() + b * 256, std::min<size_t>(256, cols - b * 256), &block);
        kernels::pack_nested(block, b, cols, into);
    }
    std::byte* at = memory.base();
    for (size_t p = 0; p < kernels::kPlanes; ++p) {
        if (!kernels::reads_plane(level, static_cast<kernels::Plane>(p))) continue;
        planes->plane[p] = at;
        for (size_t r = 0; r < rows; ++r, at += row[p].size()) std::memcpy(at, row[p].data(), row[p].size());
    }
    return rows;
}

double measure(const kernels::KernelSet& kernels, Team& team, const pager::Mapping& memory, const ComputePart& part,
               const ComputeProbeOptions& options) {
    const size_t row_bytes = part.row_bytes();
    const auto level = static_cast<kernels::Level>(part.level);
    kernels::NestedRows planes;
    const size_t rows = part.level != 0 ? fill_planes(memory, level, part.cols, &planes) : fill(memory, part.type, part.cols);
    const size_t unit = std::min(rows, rows_of_unit(row_bytes, options.group_bytes, team.size(), SIZE_MAX));
    const size_t units = rows / unit;
    const size_t group = std::clamp<size_t>(options.group_bytes / (unit * row_bytes), 1, units);
    const std::vector<float> input(part.cols, 0.5f);

    // Changed by the last worker at a meeting, read by all behind it.
    size_t first = 0, groups = 0;
    bool done = false;
    std::atomic<size_t> ticket{0};
    const auto begin = Clock::now();
    team.run([&](size_t) {
        std::vector<float> y(unit);
        std::vector<std::byte> packed(kernels::activation_bytes(part.form, part.cols));
        while (!done) {
            kernels.quantize(part.form, input.data(), part.cols, packed.data());
            for (size_t at = ticket.fetch_add(1, std::memory_order_relaxed); at < group; at = ticket.fetch_add(1, std::memory_order_relaxed)) {
                const size_t row = (first + at) % units * unit;
                if (part.level != 0)
                    kernels.matmul_nested(level, part.form, planes.from(row, part.cols), unit, part.cols, packed.data(), packed.size(), 1,
                                          y.data(), unit);
                else
                    kernels.matmul(part.type, part.form, memory.base() + row * row_bytes, unit, part.cols, packed.data(), packed.size(),
                                   1, y.data(), unit);
            }
            team.barrier([&] {
                ticket.store(0, std::memory_order_relaxed);
                first = (first + group) % units;
                ++groups;
                done = seconds_since(begin) >= options.seconds_per_part;
            });
        }
    });
    return static_cast<double>(groups * group * unit * row_bytes) / seconds_since(begin);
}

}  // namespace

std::vector<ComputePart> compute_parts(const ModelMap& map, const ActivationForms& forms, double expert_share,
                                       const sched::Plan& plan) {
    std::vector<ComputePart> parts;
    for (const PlacedTensor& placed : map.tensors) {
        const GgufTensor& t = *placed.tensor;
        const size_t cols = t.dims[0];
        ComputePart of;
        of.cols = cols;
        of.level = placed.part != nullptr ? plan.levels[placed.shard] : 0;
        if (of.level == 0) of.type = t.type;
        of.form = of.level != 0 ? form_of(t.name, forms) : kernels::activation_for(t.type, cols, form_of(t.name, forms));
        auto it = std::find_if(parts.begin(), parts.end(),
                               [&](const ComputePart& p) { return p.type == of.type && p.level == of.level && p.form == of.form; });
        if (it == parts.end()) it = parts.insert(parts.end(), of);
        it->cols = std::max(it->cols, cols);
        const uint64_t rows = placed.part != nullptr ? placed.part->rows : t.rows();
        const double met = placed.experts ? expert_share : 1;
        it->bytes += static_cast<uint64_t>(met * static_cast<double>(of.level != 0 ? rows * of.row_bytes() : t.bytes));
        it->elements += static_cast<uint64_t>(met * static_cast<double>(rows * cols));
    }
    std::sort(parts.begin(), parts.end(), [](const ComputePart& a, const ComputePart& b) { return a.bytes > b.bytes; });
    return parts;
}

uint64_t probe_memory(uint64_t allowed) {
    const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
    const uint64_t wanted = kCacheShare * (cache > 0 ? static_cast<uint64_t>(cache) : kUsualCache);
    return std::min(wanted, allowed);
}

double probe_compute(const kernels::KernelSet& kernels, Team& team, const ComputeProbeOptions& options,
                     std::span<ComputePart> parts) {
    size_t longest_row = 1;
    for (const ComputePart& part : parts) longest_row = std::max<size_t>(longest_row, part.row_bytes());
    // Huge pages, as the frames are.
    const size_t pmd = pager::huge_pages_allowed() ? pager::pmd_page_size() : pager::page_size();
    const pager::Mapping memory(pager::align_up(std::max<uint64_t>(options.memory, longest_row), pmd), pmd, true, "kernel probe");
    for (ComputePart& part : parts) part.bytes_per_s = measure(kernels, team, memory, part, options);

    const auto begin = Clock::now();
    size_t meetings = 0;
    do {  // on a busy machine one meeting may take a scheduler's turn
        team.run([&](size_t) {
            for (size_t i = 0; i < kMeetings; ++i) team.barrier();
        });
        meetings += kMeetings;
    } while (seconds_since(begin) < kMeetingSeconds);
    return seconds_since(begin) / static_cast<double>(meetings);
}

double probe_reads(Team& team, uint64_t memory, double seconds) {
    const size_t pmd = pager::huge_pages_allowed() ? pager::pmd_page_size() : pager::page_size();
    const pager::Mapping mapping(pager::align_up(std::max<uint64_t>(memory, kReadBytes), std::max(pmd, kReadBytes)), pmd, true, "read probe");
    std::memset(mapping.base(), 1, mapping.bytes());
    const size_t pieces = mapping.bytes() / kReadBytes;
    std::atomic<size_t> ticket{0};
    std::atomic<uint64_t> keep{0};  // so that no read is left out
    const auto begin = Clock::now();
    team.run([&](size_t) {
        uint64_t sums[8] = {};
        while (seconds_since(begin) < seconds) {
            const std::byte* const piece = mapping.base() + ticket.fetch_add(1, std::memory_order_relaxed) % pieces * kReadBytes;
            for (size_t at = 0; at < kReadBytes; at += sizeof sums) {
                uint64_t line[8];
                __builtin_prefetch(piece + at + kReadAhead);
                std::memcpy(line, piece + at, sizeof line);
                for (size_t i = 0; i < 8; ++i) sums[i] += line[i];
            }
        }
        for (const uint64_t sum : sums) keep.fetch_add(sum, std::memory_order_relaxed);
    });
    return static_cast<double>(ticket.load() * kReadBytes) / seconds_since(begin);
}

double probe_dots(const kernels::KernelSet& kernels, Team& team, double seconds) {
    constexpr kernels::Type kType = kernels::Type::kQ8_0;
    std::atomic<uint64_t> calls{0};
    const auto begin = Clock::now();
    team.run([&](size_t) {
        std::vector<float> input(kDotCols, 0.5f), y(kDotRows * kDotTokens);
        std::vector<std::byte> weights(kDotRows * kernels::row_bytes(kType, kDotCols));
        for (size_t r = 0; r < kDotRows; ++r)
            kernels::quantize_weights(kType, input.data(), weights.data() + r * kernels::row_bytes(kType, kDotCols), kDotCols);
        const size_t stride = kernels::activation_bytes(Activation::kInt8, kDotCols);
        std::vector<std::byte> packed(kDotTokens * stride);
        for (size_t t = 0; t < kDotTokens; ++t) kernels.quantize(Activation::kInt8, input.data(), kDotCols, packed.data() + t * stride);
        while (seconds_since(begin) < seconds) {
            for (size_t i = 0; i < kDotRounds; ++i)
                kernels.matmul(kType, Activation::kInt8, weights.data(), kDotRows, kDotCols, packed.data(), stride, kDotTokens, y.data(), kDotRows);
            calls.fetch_add(kDotRounds, std::memory_order_relaxed);
        }
    });
    return 2.0 * static_cast<double>(calls.load() * kDotRows * kDotCols * kDotTokens) / seconds_since(begin);
}

}  // namespace weir
