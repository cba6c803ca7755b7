// What a run says of itself: the effective configuration at its start, figures at its end, for people on stderr and for
// machines as one JSON object on stdout.
#pragma once

#include <string>
#include <vector>

#include "runtime/cli/run_options.h"
#include "runtime/engine/auto_precision.h"
#include "runtime/engine/budget.h"
#include "runtime/engine/generate.h"
#include "runtime/model/config.h"

namespace weir {

struct RunReport {
    const RunOptions* options = nullptr;
    const ModelConfig* config = nullptr;
    Budget budget;
    const char* kernels = "";
    size_t threads = 0;
    size_t context = 0;
    uint64_t seed = 0;
    double load_s = 0;
    std::string fallback;  // why the weights are not paged as was asked for; "" where they are
    StoreStats store;
    const AutoReport* precision = nullptr;  // of --precision auto, at the end
    bool pressure = false;          // memory pressure was watched
    std::string pressure_source;    // what there was to look at
    GenerateResult result;
    const std::vector<TokenId>* prompt = nullptr;
    const std::string* text = nullptr;
};

// As --activations takes it.
// One line where something came too late: that is never silent.
void print_late(const RunReport& report);
const char* activations_name(const RunOptions& options);

// The compiled-in kernel sets, best first: "avx2, scalar".
std::string known_kernel_sets();

// What the whole process may take where the weights may take frame_bytes.
uint64_t ram_with(const Budget& budget, uint64_t frame_bytes);

void print_configuration(const RunReport& report);
void print_budget_change(const Budget& budget, uint64_t frames_before, uint64_t frames_now, const std::string& reason);
void print_statistics(const RunReport& report);
// Of them, what --precision auto came to.
void print_precision(const AutoReport& report);
// False where standard output could not be written.
bool print_json(const RunReport& report);

}  // namespace weir
