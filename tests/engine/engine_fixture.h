// A whole engine over one model file, as tests want it: all rows of logits, any batch, any number of threads.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/engine/forward.h"

namespace weir::test {

struct EngineOptions {
    PagingMode paging = PagingMode::kMmap;
    kernels::Level level = kernels::Level::k8;  // of a native file
    std::vector<sched::Plan> plans{};           // of it, in the place of the level
    uint64_t frame_bytes = 0;
    bool gates = true;
    size_t threads = 1;
    size_t max_batch = 64;
    size_t logit_rows = 64;
    size_t n_ctx = 64;
    KvType kv_type = KvType::kF32;
    bool rings = true;  // false: layers with a window keep the whole context as well
    ActivationForms forms = ActivationForms::all(kernels::Activation::kF32);
    const char* kernel_set = "";
    std::string trace_io{};
};

class Engine {
  public:
    Engine(const std::string& path, const EngineOptions& options)
        : file(GgufFile::open(path)), config(read_config(file)) {
        StoreOptions store_options;
        store_options.mode = options.paging;
        store_options.plans = options.plans;
        if (options.plans.empty()) store_options.plans = {sched::uniform_plan(config.n_layers, static_cast<int>(options.level))};
        store_options.trace_io = options.trace_io;
        store_options.frame_bytes = options.frame_bytes;
        store_options.workers = options.threads;
        store_options.gates = options.gates;
        store = WeightStore::open(file, config, store_options);
        model = bind_model(file, config, *store);
        cache = std::make_unique<KvCache>(config, options.kv_type, options.n_ctx,
                                          options.rings ? options.max_batch : SIZE_MAX);
        team = std::make_unique<Team>(options.threads);
        forward = std::make_unique<Forward>(model, *store, *cache, *team, *kernels::select_kernels(options.kernel_set),
                                            options.forms, options.max_batch, options.logit_rows);
    }

    // Logits of all of `ids`, computed in passes of `chunk` tokens.
    std::vector<float> logits(std::span<const int32_t> ids, size_t chunk) {
        std::vector<float> all;
        for (size_t at = 0; at < ids.size(); at += chunk) {
            const auto part = ids.subspan(at, std::min(chunk, ids.size() - at));
            const auto rows = forward->pass(part, part.size(), at + part.size() < ids.size());
            all.insert(all.end(), rows.begin(), rows.end());
        }
        return all;
    }

    GgufFile file;
    ModelConfig config;
    std::unique_ptr<WeightStore> store;
    Model model;
    std::unique_ptr<KvCache> cache;
    std::unique_ptr<Team> team;
    std::unique_ptr<Forward> forward;
};

}  // namespace weir::test
