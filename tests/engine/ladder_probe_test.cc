// What a ladder's plans are recorded to make of a window is what plain passes at these plans show, behind a prompt at
// the first.
#include "runtime/engine/ladder_probe.h"

#include <gtest/gtest.h>

#include "runtime/engine/generate.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/native_model.h"

namespace weir::test {
namespace {

constexpr size_t kWindow = 24, kFirst = 12, kScored = scored_per_window(kWindow);

std::vector<TokenId> window(int seed) {
    std::vector<TokenId> ids;
    for (int i = 0; i < static_cast<int>(kWindow); ++i) ids.push_back(3 + (i * i * 7 + seed * 31) % 290);
    return ids;
}

TEST(LadderProbe, RecordsWhatPlainPassesShow) {
    const TinyShape shape;
    const TinyNativeFile file(shape);
    std::vector<sched::RatedPlan> ladder;
    EngineOptions options{.paging = PagingMode::kResident, .threads = 2};
    for (const int level : {8, 4, 2}) {
        ladder.push_back({sched::uniform_plan(shape.n_layers, level), 0, 0});
        options.plans.push_back(ladder.back().plan);
    }
    Engine engine(file.path(), options), reference(file.source(), {});
    const size_t n_vocab = engine.config.n_vocab;
    for (const size_t rows : {1u, 5u, 64u}) {
        LadderProbe probe({engine.forward.get(), engine.cache.get()}, *engine.store, ladder,
                          {reference.forward.get(), reference.cache.get()}, *engine.team, kWindow, n_vocab, rows);
        for (const int seed : {1, 2}) {
            const std::vector<TokenId> ids = window(seed);
            const std::span<const TokenId> prompt = std::span(ids).first(kFirst),
                                           rest = std::span(ids).subspan(kFirst, kScored);
            const auto found = probe.score(ids);
            ASSERT_EQ(found.size(), kScored * ladder.size());
            Engine truth(file.source(), {}), plain(file.path(), options);
            const std::vector<float> all = truth.logits(ids, 64);
            for (size_t p = 0; p < ladder.size(); ++p) {
                plain.cache->set_length(0);
                plain.store->use_plan(ladder[0].plan);
                plain.forward->pass(prompt, 0, true);
                plain.store->use_plan(ladder[p].plan);
                const std::vector<float> logits = plain.logits(rest, 64);
                for (size_t t = 0; t < kScored; ++t) {
                    const auto row = std::span(logits).subspan(t * n_vocab, n_vocab);
                    const auto true_row = std::span(all).subspan((kFirst + t) * n_vocab, n_vocab);
                    const sched::TokenAtPlan& at = found[t * ladder.size() + p];
                    EXPECT_EQ(at.kl, divergence(true_row, row, 0).kl);
                    EXPECT_EQ(at.signal.entropy, signal_of(*kernels::select_kernels(""), 0, row).entropy);
                    EXPECT_EQ(at.signal.margin, signal_of(*kernels::select_kernels(""), 0, row).margin);
                }
            }
            EXPECT_NE(found[0].kl, found[2].kl);
        }
    }
}

}  // namespace
}  // namespace weir::test
