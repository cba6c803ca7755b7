// Which plan a token gets by which token is read: some are hard to have read at few bits, and a text that was measured says
// which. Unlike entropy this is known before the pass, and no token has to wait for what others did.
//
// Plain data and pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "schedtool/sensitivity.h"

namespace weir::sched {

struct TokenPlans {
    std::string model;               // its fingerprint: they are of one file
    std::vector<RatedPlan> plans;    // finest first; kl: measured, a mean over tokens
    double price = 0;                // of a byte, in nats
    std::map<int32_t, double> costs; // by token id: its divergence over that of the mean token, a mean over plans

    double cost(int32_t id) const;   // 1 of a token that was not seen
    // The plan with the least sum of the divergence to be expected and of its bytes' price; of equals the coarser.
    size_t rung(int32_t id) const;
};

std::string token_plans_json(const TokenPlans& plans);
// Throws std::runtime_error, one line that begins with `name`, for a text that is none.
TokenPlans read_token_plans(const std::string& text, const std::string& name);

}  // namespace weir::sched
