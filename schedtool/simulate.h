// How fast a device would decode, by formulas, before anybody measures it. Where they come from: the design's section 5
// (a cyclic scan keeps R bytes and reads M - R a token, reads and compute overlap), and its section 7 with Leviathan et
// al. 2023 (drafts).
//
//     a plan of b bytes and c seconds of compute, F bytes of frames that stay, a device of s bytes a second:
//         t = max(c, max(0, b - F) / s)
//     auto, where plan p gets a share w[p] of the tokens:  sum(w[p]) / sum(w[p] t[p]) tokens a second
//     auto-exact, k tokens drafted at plan d, then k + 1 rows verified at plan v, a further row costing r:
//         cycle = k t[d] + max(c[v] + k r, max(0, b[v] - F) / s)
//         tokens = 1 + a[1] + a[1] a[2] + ... + a[1] ... a[k], a[i] the share that is right at place i where all
//         before it are
//
// Drafts do not overlap the trip that verifies: what frames hold beside the drafts' planes has stayed or was read
// ahead while drafting, the same bytes in F either way. The planes of a draft's level are taken for a part of the
// verifying level's, as nested ones are but for scales. Faults, misses and what reads and compute take from each other
// are left out.
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weir::sched {

struct SimulatedPlan {
    std::string name;
    uint64_t bytes = 0;    // that a token reads
    double compute_s = 0;  // of a token with all of them in memory
};

struct Device {
    double bytes_per_s = 0;
    uint64_t frames = 0;  // bytes that stay
    double row_s = 0;     // compute of each further row of a pass
};

double seconds_per_token(const SimulatedPlan& plan, const Device& device);
// shares: of each plan, any sum above 0.
double auto_tokens_per_s(std::span<const SimulatedPlan> plans, std::span<const double> shares, const Device& device);

// Tokens that a pass brings which verifies k drafts. acceptance: by place; the last one holds for later places.
double tokens_per_pass(std::span<const double> acceptance, size_t k);
double exact_tokens_per_s(const SimulatedPlan& verify, const SimulatedPlan& draft, std::span<const double> acceptance,
                          size_t k, const Device& device);

struct Simulation {
    std::vector<SimulatedPlan> plans;  // finest first
    Device device;
    std::vector<double> shares;      // of auto; none: it is left out
    std::vector<double> acceptance;  // none: auto-exact is left out
    size_t draft = 0;                // the plan that drafts; the first verifies
};
std::string simulation_text(const Simulation& simulation);
std::string simulation_json(const Simulation& simulation);

}  // namespace weir::sched
