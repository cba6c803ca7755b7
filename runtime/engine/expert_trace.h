// Which experts each token used, layer by layer: recorded from a run, and played back, so that a synthetic model routes with a
// real one's skew. The format is bench/paging_trace.h's: one place for each layer, one `use` line for each token and layer.
//
//     weir-trace 1
//     unit 3542016          bytes of an expert
//     place groups 64 1     one line for each layer: its experts
//     token
//     use 0 5 9 33          layer, experts
//
// Threads: the leader's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/model/config.h"

namespace weir {

// Throws Error where the file cannot be written; a disk that is full is found by finish().
class ExpertTraceWriter {
  public:
    ExpertTraceWriter(const std::string& path, const ModelConfig& config, uint64_t expert_bytes, size_t max_batch);
    ~ExpertTraceWriter();
    ExpertTraceWriter(const ExpertTraceWriter&) = delete;
    ExpertTraceWriter& operator=(const ExpertTraceWriter&) = delete;

    // chosen: [tokens][used].
    void add(size_t layer, std::span<const uint32_t> chosen) noexcept;
    // A pass of so many tokens is complete.
    void end_pass(size_t tokens) noexcept;
    // Throws Error where something could not be written.
    void finish();

  private:
    const std::string path_;
    const size_t layers_;
    const size_t used_;
    const size_t max_batch_;
    std::FILE* file_ = nullptr;
    std::vector<uint32_t> chosen_;  // [layers][max_batch][used]
};

// A trace to route by. Token t of the run uses what token t of the trace used, and the trace begins again at its end.
class ExpertTraceReader {
  public:
    // Throws Error with the line where it is no such trace, or one of another shape than the model's.
    ExpertTraceReader(const std::string& path, const ModelConfig& config);

    // Ascending; [used].
    std::span<const uint32_t> chosen(size_t layer, size_t token) const {
        const size_t tokens = chosen_.size() / (layers_ * used_);
        return {chosen_.data() + ((token % tokens) * layers_ + layer) * used_, used_};
    }

  private:
    const size_t layers_;
    const size_t used_;
    std::vector<uint32_t> chosen_;  // [tokens][layers][used]
};

}  // namespace weir
