#include "runtime/engine/expert_trace.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "runtime/error.h"

namespace weir {
namespace {

// More than any trace of use: a file that claims more is none.
constexpr size_t kMostChosen = size_t{1} << 28;

}  // namespace

ExpertTraceWriter::ExpertTraceWriter(const std::string& path, const ModelConfig& config, uint64_t expert_bytes, size_t max_batch)
    : path_(path), layers_(config.n_layers), used_(config.n_experts_used), max_batch_(max_batch) {
    file_ = std::fopen(path.c_str(), "w");
    if (file_ == nullptr) throw Error(path + ": cannot be written: " + std::strerror(errno));
    std::fprintf(file_, "weir-trace 1\nunit %llu\n", static_cast<unsigned long long>(expert_bytes));
    for (size_t l = 0; l < layers_; ++l) std::fprintf(file_, "place groups %zu 1\n", config.n_experts);
    chosen_.resize(layers_ * max_batch_ * used_);
}

ExpertTraceWriter::~ExpertTraceWriter() {
    if (file_ != nullptr) std::fclose(file_);
}

void ExpertTraceWriter::add(size_t layer, std::span<const uint32_t> chosen) noexcept {
    std::copy(chosen.begin(), chosen.end(), chosen_.begin() + static_cast<ptrdiff_t>(layer * max_batch_ * used_));
}

void ExpertTraceWriter::end_pass(size_t tokens) noexcept {
    for (size_t t = 0; t < tokens; ++t) {
        std::fputs("token\n", file_);
        for (size_t l = 0; l < layers_; ++l) {
            std::fprintf(file_, "use %zu", l);
            const uint32_t* const chosen = chosen_.data() + (l * max_batch_ + t) * used_;
            for (size_t i = 0; i < used_; ++i) std::fprintf(file_, " %u", chosen[i]);
            std::fputc('\n', file_);
        }
    }
}

void ExpertTraceWriter::finish() {
    const bool written = std::ferror(file_) == 0;
    const bool closed = std::fclose(file_) == 0;
    file_ = nullptr;
    if (!written || !closed) throw Error(path_ + ": the trace could not be written: " + std::strerror(errno));
}

ExpertTraceReader::ExpertTraceReader(const std::string& path, const ModelConfig& config)
    : layers_(config.n_layers), used_(config.n_experts_used) {
    std::ifstream in(path);
    if (!in) throw Error(path + ": cannot be opened: " + std::strerror(errno));
    std::string line;
    size_t number = 0, places = 0;
    const auto fail = [&](const std::string& what) { throw Error(path + ":" + std::to_string(number) + ": " + what); };
    std::vector<uint8_t> seen(layers_, 1);  // in the token under way
    const auto complete = [&] { return std::count(seen.begin(), seen.end(), 1) == static_cast<ptrdiff_t>(layers_); };
    while (std::getline(in, line)) {
        ++number;
        std::istringstream words(line.substr(0, line.find('#')));
        std::string word;
        if (!(words >> word)) continue;
        if (number == 1) {
            unsigned version = 0;
            if (word != "weir-trace" || !(words >> version) || version != 1) fail("no trace of experts: its first line is not \"weir-trace 1\"");
        } else if (word == "place") {
            size_t experts = 0;
            if (!(words >> word >> experts) || word != "groups" || experts != config.n_experts)
                fail("a place that is none of this model's: " + std::to_string(config.n_experts) + " experts a layer");
            ++places;
        } else if (word == "token") {
            if (!complete()) fail("the token before has no use for some layer");
            if (places != layers_) fail("the trace has " + std::to_string(places) + " layers, the model " + std::to_string(layers_));
            if (chosen_.size() >= kMostChosen) fail("the trace is too long");
            std::fill(seen.begin(), seen.end(), uint8_t{0});
            chosen_.resize(chosen_.size() + layers_ * used_);
        } else if (word == "use") {
            size_t layer = layers_;
            if (!(words >> layer) || layer >= layers_ || chosen_.empty() || seen[layer] != 0) fail("a use of no layer of this token");
            seen[layer] = 1;
            uint32_t* const to = chosen_.data() + chosen_.size() - (layers_ - layer) * used_;
            for (size_t i = 0; i < used_; ++i) {
                if (!(words >> to[i]) || to[i] >= config.n_experts)
                    fail(std::to_string(used_) + " experts below " + std::to_string(config.n_experts) + " are needed");
            }
            std::sort(to, to + used_);
            if (std::adjacent_find(to, to + used_) != to + used_ || words >> word)
                fail(std::to_string(used_) + " different experts are needed");
        } else if (word != "unit" && word != "hint" && word != "cancel") {
            fail("\"" + word.substr(0, 20) + "\" is nothing that a run can follow");
        }
    }
    if (chosen_.empty() || !complete()) throw Error(path + ": the trace has no token, or ends within one");
}

}  // namespace weir
