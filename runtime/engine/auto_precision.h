// `--precision auto` while a model computes: which plan of a ladder each pass has, and where each answer stands on that ladder.
//
// Every answer goes along the ladder by itself (schedtool/scheduler.h): it begins where the last prompt of its kind ended, or in
// the middle, and each of its tokens says which rung the next one wants; or, with plans by token (schedtool/token_plans.h), each
// token has the rung that it wants for being read. A pass has one plan, the finest that anything in it
// wants. Prompts want the finest of all, at 8 bits: their reads are shared by all their tokens.
//
// For the thread that owns the Forward; changed_memory() for any one thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/generate.h"
#include "runtime/engine/weight_store.h"
#include "schedtool/plan_memory.h"
#include "schedtool/scheduler.h"
#include "schedtool/token_plans.h"

namespace weir {

struct AutoReport {
    struct Rung {
        uint64_t bytes;  // that a token reads
        double predicted_kl;
        uint64_t tokens;  // computed at it, those of prompts left out
    };
    std::vector<Rung> rungs;    // finest first
    uint64_t switches = 0;      // of answers, from one token to the next
    uint64_t plan_changes = 0;  // of passes: at another plan than the one before
    uint64_t remembered = 0;    // answers that began where a prompt of their kind had ended
    double mean_bytes() const;  // of a token
};

class AutoPrecision {
  public:
    static constexpr size_t kFinest = 0;  // a rung

    // Where one answer stands.
    struct Place {
        uint64_t signature;  // of its prompt
        bool remembered;
        sched::Scheduler scheduler;
        std::optional<size_t> next;  // what a token has said that the next one wants
        size_t rung() const { return next.value_or(scheduler.rung()); }
    };

    // ladder: finest first, not empty. A store was opened with plans(); the first is in force.
    AutoPrecision(std::vector<sched::RatedPlan> ladder, sched::PlanMemory memory, const sched::SchedulerOptions& options = {},
                  std::optional<sched::TokenPlans> by_token = {});
    // Nothing is remembered of prompts: each token says by itself what it wants.
    explicit AutoPrecision(const sched::TokenPlans& by_token);

    const std::vector<sched::RatedPlan>& ladder() const { return ladder_; }
    std::vector<sched::Plan> plans() const;

    Place begin(std::span<const TokenId> prompt);
    // The rung of the pass that reads this token, which was drawn from the distribution that the signal is of.
    size_t next(Place* place, TokenId id, const TokenSignal& signal);
    // After the last token: where this kind of prompt ends is remembered.
    void end(const Place& place);

    // Before a pass: it has this rung, and `tokens` of it are of answers. Throws what use_plan() throws.
    void use(size_t rung, size_t tokens, WeightStore* store);
    size_t rung() const { return rung_; }

    // As a file has it; nothing where it is what it was at the last call.
    std::optional<std::string> changed_memory();
    const AutoReport& report() const { return report_; }

  private:
    const std::vector<sched::RatedPlan> ladder_;
    const sched::SchedulerOptions options_;
    const std::optional<sched::TokenPlans> by_token_;
    size_t rung_ = kFinest;
    AutoReport report_;

    std::mutex mutex_;  // of what follows
    sched::PlanMemory memory_;
    bool memory_changed_ = false;
};

// The tokens that a KV cache holds. A prompt takes over a beginning that it shares with them, as far as that was computed at the
// precision of prompts: keys and values of a coarser plan, and of whatever was computed on top of them, are others.
class CachedTokens {
  public:
    const std::vector<TokenId>& ids() const { return ids_; }
    size_t size() const { return ids_.size(); }
    void reserve(size_t n) { ids_.reserve(n); }

    // How many of the prompt's first tokens are here for it.
    size_t common(std::span<const TokenId> prompt) const;
    // Keeps the first n.
    void cut(size_t n);
    // finest: their pass had the precision of prompts; always true of a fixed one.
    void add(std::span<const TokenId> ids, bool finest);

  private:
    std::vector<TokenId> ids_;
    size_t finest_ = 0;  // of them, from the first on
};

}  // namespace weir
