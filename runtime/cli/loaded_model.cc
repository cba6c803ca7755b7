#include "runtime/cli/loaded_model.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "pager/system.h"
#include "runtime/cli/run_budget.h"
#include "runtime/cli/run_report.h"
#include "runtime/cli/terminal.h"
#include "runtime/engine/activation_buffers.h"
#include "runtime/error.h"
#include "runtime/model/model_map.h"
#include "runtime/severity.h"

namespace weir {

const kernels::KernelSet& chosen_kernels() {
    const char* const forced = std::getenv("WEIR_KERNELS");
    const kernels::KernelSet* const kernels = kernels::select_kernels(forced);
    if (kernels == nullptr)
        throw UsageError(std::string("WEIR_KERNELS=") + forced + ": unknown, or not for this CPU; known: " + known_kernel_sets());
    return *kernels;
}

ActivationForms chosen_activations(const RunOptions& o) {
    return o.activations == kernels::Activation::kFine ? ActivationForms::product() : ActivationForms::all(o.activations);
}

StoreOptions chosen_paging(const RunOptions& o, std::string* fallback) {
    StoreOptions store = o.store;
    *fallback = fall_back(&store);
    if (!fallback->empty())
        std::fprintf(stderr, "%sweir: warning: %s; going on with --paging advised: same text, softer budget\n",
                     severity_prefix(Severity::kWarning), fallback->c_str());
    store.progress = stderr_is_terminal() && !o.quiet;
    return store;
}

std::vector<sched::Plan> chosen_plans(const RunOptions& o, const GgufFile& file, const ModelConfig& config) {
    if (file.native() == nullptr) {
        if (!o.precision && o.precision_plan.empty()) return {};
        throw UsageError(std::string(o.precision ? "--precision: " : "--precision-plan: ") + file.path() +
                         " is plain GGUF and has one precision; weir convert makes a native file of it, which has five");
    }
    if (o.precision == kAutoPrecision) throw UsageError("--precision auto is for weir run, chat and serve; give 8, 6, 4, 3 or 2");
    if (o.precision == kExactPrecision) throw UsageError("--precision auto-exact is weir run's alone; give 8, 6, 4, 3 or 2");
    if (o.precision_plan.empty()) return {sched::uniform_plan(config.n_layers, o.precision.value_or(8))};
    if (o.precision) throw UsageError("--precision and --precision-plan together: give one");
    return {sched::read_plan(read_text(o.precision_plan, "the plan"), config.n_layers, o.precision_plan)};
}

std::string sensitivity_path(const std::string& model) { return model + ".sensitivity.json"; }

ModelFile::ModelFile(const std::string& path, const std::string& pre_tokenizer)
    : file(GgufFile::open(path)), config(read_config(file)), tokenizer(Tokenizer::from_gguf(file, pre_tokenizer)) {}

Budget choose_budget(const RunOptions& o, PagingMode mode, std::span<ModelShare> models) {
    if (mode == PagingMode::kResident && o.weights_ram)
        throw UsageError("--paging resident keeps all weights in memory, and --weights-ram asks for less: give one");
    if (mode == PagingMode::kMmap && (o.ram || o.weights_ram))
        std::fprintf(stderr, "%sweir: note: --paging mmap leaves memory to the kernel: only a cgroup can limit it, --ram does not\n",
                     severity_prefix(Severity::kNotice));
    BudgetInput all;
    uint64_t walks = 0, copied = 0;  // of all models, in bytes
    for (ModelShare& m : models) {
        const ModelConfig& config = m.model->config;
        const ModelMap map = build_model_map(m.model->file, config, pager::page_size(), false, m.plans);
        const uint64_t kv_bytes =
            m.sequences * KvCache::bytes(config, o.kv_type, m.shape.n_ctx, m.shape.batch);
        BudgetInput in = budget_input(o, mode, map, config, m.shape.workers, kv_bytes, ActivationBuffers::bytes(config, m.shape));
        in.base += m.beside_bytes;
        copied += m.copied_bytes;
        m.frame_bytes = map.weights_bytes;  // what it would take; below, what it gets
        walks += map.weights_bytes;
        if (&m == &models.front()) {
            all = in;
            continue;
        }
        all.kv_cache += in.kv_cache;
        all.activations += in.activations;
        all.weights += in.weights;
        all.threads += in.threads;
    }
    if (o.weights_ram) {
        const uint64_t wanted = o.weights_ram->of(walks);
        all.weights_ram = wanted - std::min(wanted, copied);
    }
    const Budget budget = divide_memory(all);
    uint64_t left = budget.frames;
    for (ModelShare& m : models) {
        const double share = static_cast<double>(m.frame_bytes) / static_cast<double>(walks);
        m.frame_bytes = &m == &models.back() ? left : static_cast<uint64_t>(static_cast<double>(budget.frames) * share);
        left -= m.frame_bytes;
    }
    return budget;
}

LoadedModel::LoadedModel(const ModelShare& share, StoreOptions store_options, KvType kv_type, const kernels::KernelSet& kernels,
                         const ActivationForms& forms)
    : store([&] {
          store_options.frame_bytes = share.frame_bytes;
          store_options.workers = share.shape.workers;
          store_options.plans = share.plans;
          return WeightStore::open(share.model->file, share.model->config, store_options);
      }()),
      model(bind_model(share.model->file, share.model->config, *store)),
      cache(share.model->config, kv_type, share.shape.n_ctx, share.shape.batch),
      team(share.shape.workers),
      forward(model, *store, cache, team, kernels, forms, share.shape.batch, share.shape.logit_rows) {}

}  // namespace weir
