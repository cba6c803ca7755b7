#include "runtime/cli/precision_files.h"

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

void check_native(const RunOptions& o, const ModelFile& model) {
    if (model.file.native() == nullptr)
        throw UsageError(
            "--precision auto: " + o.model +
            " is plain GGUF and has one precision; weir convert makes a native file of it, which has five");
}

sched::PlanMemory read_memory(const std::string& path) {
    struct stat there {};
    if (path.empty() || ::stat(path.c_str(), &there) != 0) return sched::PlanMemory();
    return sched::PlanMemory::parse(read_text(path, "the memory of plans"), path);
}

}  // namespace

std::vector<sched::RatedPlan> chosen_ladder(const RunOptions& o, const ModelFile& model, size_t rungs) {
    check_native(o, model);
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

std::unique_ptr<AutoPrecision> chosen_auto_precision(const RunOptions& o, const ModelFile& model) {
    if (o.precision != kAutoPrecision) return nullptr;
    if (!o.token_plans.empty()) {
        if (!o.sensitivity.empty()) throw UsageError("--token-plans and --sensitivity together: the former has its plans in it");
        if (!o.plan_memory.empty())
            throw UsageError("--token-plans and --plan-memory together: each token has its own plan, wherever a prompt has ended");
        check_native(o, model);
        const sched::TokenPlans plans = sched::read_token_plans(read_text(o.token_plans, "the plans by token"), o.token_plans);
        if (plans.model != native_fingerprint(*model.file.native()) || plans.plans[0].plan.n_layers() != model.config.n_layers)
            throw Error(o.token_plans + ": was fitted to another model than " + o.model + "; trace and fit it anew (weir perplexity --trace-tokens, weir-sched fit)");
        return std::make_unique<AutoPrecision>(plans);
    }
    return std::make_unique<AutoPrecision>(chosen_ladder(o, model), read_memory(o.plan_memory));
}

void save_plan_memory(const RunOptions& o, AutoPrecision* precision) {
    if (o.plan_memory.empty()) return;
    const std::optional<std::string> text = precision->changed_memory();
    if (!text) return;
    PartialFile file(o.plan_memory);
    file.write(0, std::as_bytes(std::span(*text)));
    file.finish(text->size());
}

PrecisionTrace::PrecisionTrace(const RunOptions& o, const AutoPrecision* precision) : path_(o.trace_precision) {
    if (path_.empty() || precision == nullptr) return;
    const std::vector<sched::RatedPlan>& ladder = precision->ladder();
    file_.reset(std::fopen(path_.c_str(), "w"));
    if (file_ == nullptr) throw Error(path_ + ": cannot create: " + std::strerror(errno));
    for (size_t r = 0; r < ladder.size(); ++r)
        std::fprintf(file_.get(), "# rung %zu: %llu bytes, predicted KL %.6f, %s\n", r, static_cast<unsigned long long>(ladder[r].bytes),
                     ladder[r].kl, sched::precision_json(ladder[r].plan).c_str());
    std::fputs("# token entropy margin rung\n", file_.get());
}

void PrecisionTrace::add(const TokenSignal& signal, size_t rung) {
    if (file_ != nullptr) std::fprintf(file_.get(), "%zu %.4f %.4f %zu\n", signal.token, signal.entropy, signal.margin, rung);
}

void PrecisionTrace::finish() {
    if (file_ == nullptr) return;
    std::FILE* const file = file_.release();
    const bool whole = std::ferror(file) == 0;
    if (std::fclose(file) != 0 || !whole) throw Error(path_ + ": cannot write");
}

}  // namespace weir
