#include "runtime/cli/auto_precision.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "runtime/cli/terminal.h"
#include "runtime/error.h"
#include "runtime/model/native_format.h"
#include "runtime/model/partial_file.h"

namespace weir {
namespace {

// Nats, predicted: beyond it a plan is worse than most uses bear.
constexpr double kMostKl = 0.1;

sched::PlanMemory read_memory(const std::string& path) {
    struct stat there {};
    if (path.empty() || ::stat(path.c_str(), &there) != 0) return sched::PlanMemory();
    return sched::PlanMemory::parse(read_text(path, "the memory of plans"), path);
}

}  // namespace

std::vector<sched::RatedPlan> chosen_ladder(const RunOptions& o, const ModelFile& model, size_t rungs) {
    if (model.file.native() == nullptr)
        throw UsageError(
            "--precision auto: " + o.model +
            " is plain GGUF and has one precision; weir convert makes a native file of it, which has five");
    const std::string path = o.sensitivity.empty() ? sensitivity_path(o.model) : o.sensitivity;
    struct stat there {};
    if (::stat(path.c_str(), &there) != 0)
        throw UsageError("--precision auto: " + path + " is not there; weir calibrate " + o.model +
                         " -f TEXT makes it");
    const sched::Sensitivity table = sched::read_sensitivity(read_text(path, "the table"), path);
    if (table.model != native_fingerprint(*model.file.native()) || table.n_layers() != model.config.n_layers)
        throw Error(path + ": was measured on another model than " + o.model + "; weir calibrate it anew");
    if (table.windows == 0) throw Error(path + ": holds no window yet; weir calibrate goes on with it");
    return sched::make_ladder(sched::pareto_list(table), rungs, kMostKl);
}

double AutoReport::mean_bytes() const {
    double bytes = 0;
    uint64_t tokens = 0;
    for (const Rung& rung : rungs) {
        bytes += static_cast<double>(rung.bytes) * static_cast<double>(rung.tokens);
        tokens += rung.tokens;
    }
    return tokens == 0 ? 0 : bytes / static_cast<double>(tokens);
}

AutoPrecision::AutoPrecision(const RunOptions& o, const ModelFile& model)
    : memory_path_(o.plan_memory),
      trace_path_(o.trace_precision),
      ladder_(chosen_ladder(o, model)),
      memory_(read_memory(o.plan_memory)) {
    for (const sched::RatedPlan& plan : ladder_) report_.rungs.push_back({plan.bytes, plan.kl, 0});
    if (trace_path_.empty()) return;
    trace_.reset(std::fopen(trace_path_.c_str(), "w"));
    if (trace_ == nullptr) throw Error(trace_path_ + ": cannot create: " + std::strerror(errno));
    for (size_t r = 0; r < ladder_.size(); ++r)
        std::fprintf(trace_.get(), "# rung %zu: %llu bytes, predicted KL %.6f, %s\n", r,
                     static_cast<unsigned long long>(ladder_[r].bytes), ladder_[r].kl,
                     sched::precision_json(ladder_[r].plan).c_str());
    std::fputs("# token entropy margin rung\n", trace_.get());
}

std::vector<sched::Plan> AutoPrecision::plans() const {
    std::vector<sched::Plan> plans;
    for (const sched::RatedPlan& rated : ladder_) plans.push_back(rated.plan);
    return plans;
}

void AutoPrecision::begin(std::span<const TokenId> prompt, WeightStore* store) {
    store_ = store;
    store_->use_plan(ladder_.front().plan);
    signature_ = sched::prompt_signature(prompt);
    const std::optional<size_t> known = memory_.find(signature_);
    report_.remembered = known.has_value();
    scheduler_ = std::make_unique<sched::Scheduler>(ladder_.size(),
                                                    std::min(known.value_or(ladder_.size() / 2), ladder_.size() - 1));
}

void AutoPrecision::next(const TokenSignal& signal) {
    const size_t rung = scheduler_->next({signal.entropy, signal.margin});
    store_->use_plan(ladder_[rung].plan);
    ++report_.rungs[rung].tokens;
    report_.switches = scheduler_->switches();
    if (trace_ != nullptr)
        std::fprintf(trace_.get(), "%zu %.4f %.4f %zu\n", signal.token, signal.entropy, signal.margin, rung);
}

void AutoPrecision::finish() {
    if (trace_ != nullptr) {
        std::FILE* const file = trace_.release();
        const bool whole = std::ferror(file) == 0;
        if (std::fclose(file) != 0 || !whole) throw Error(trace_path_ + ": cannot write");
    }
    if (memory_path_.empty()) return;
    memory_.remember(signature_, scheduler_->rung());
    const std::string text = memory_.text();
    PartialFile file(memory_path_);
    file.write(0, std::as_bytes(std::span(text)));
    file.finish(text.size());
}

}  // namespace weir
