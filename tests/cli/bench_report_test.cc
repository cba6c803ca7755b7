// What `weir bench paging` makes of its runs: medians, shares of the device, the formula, what it calls well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/cli/bench_paging.h"

namespace weir {
namespace {

using testing::HasSubstr;
using testing::Not;

ArmRun run_of(size_t turn, double tokens_per_s, std::optional<double> must_read = std::nullopt, std::string hash = "a") {
    ArmRun run;
    run.turn = turn;
    run.figures.tokens_per_s = tokens_per_s;
    run.figures.bytes_per_token = 600e6;
    run.figures.must_read_bytes = must_read;
    run.logits_hash = std::move(hash);
    return run;
}

LimitRuns some_limit() {
    LimitRuns limit;
    limit.percent = 50;
    limit.limit_bytes = 1000 << 20;
    limit.device_bytes_per_s = {2e9, 1e9, 2e9};
    limit.arms = {{"resident", {run_of(0, 10), run_of(1, 10), run_of(2, 10)}},
                  {"mmap", {run_of(0, 1), run_of(1, 2), run_of(2, 1.5)}},
                  {"uffd", {run_of(0, 3, 600e6), run_of(1, 1.5, 600e6), run_of(2, 3, 600e6)}}};
    return limit;
}

TEST(BenchReport, FiguresAreTakenBesideTheirOwnTurns) {
    LimitRuns limit = some_limit();
    compare_arms(&limit);
    const std::vector<ArmRun>& uffd = limit.arms[2].runs;
    EXPECT_NEAR(*uffd[0].figures.formula_s, 0.3, 1e-9);  // 600 MB at 2 GB/s; compute takes 0.1 s
    EXPECT_NEAR(*uffd[1].figures.formula_s, 0.6, 1e-9);  // the device was slower in this turn
    EXPECT_NEAR(*uffd[1].figures.formula_ratio, 1 / 1.5 / 0.6, 1e-9);
    EXPECT_NEAR(*uffd[0].figures.device_share, 0.9, 1e-9);
    // mmap has no set that stays: what must be read is the pager's.
    EXPECT_NEAR(*limit.arms[1].runs[0].figures.formula_ratio, 1 / 0.3, 1e-9);
    EXPECT_FALSE(limit.arms[0].runs[0].figures.formula_s.has_value());
}

TEST(BenchReport, ComputeBoundsWhereItTakesLonger) {
    LimitRuns limit = some_limit();
    for (ArmRun& run : limit.arms[2].runs) run.figures.must_read_bytes = 1e6;
    compare_arms(&limit);
    EXPECT_NEAR(*limit.arms[2].runs[0].figures.formula_s, 0.1, 1e-9);
}

TEST(BenchReport, AFramesFirstBytesLandInFreshMemory) {
    LimitRuns limit = some_limit();
    limit.arms[0].runs[0].figures.prefill_ms = 100;
    ArmRun& run = limit.arms[2].runs[0];
    run.figures.first_token_ms = 1000;
    run.figures.first_token_bytes = 1000e6;
    run.figures.frame_bytes = 400e6;
    compare_arms(&limit);
    EXPECT_FALSE(run.figures.first_ratio.has_value());  // nobody measured fresh memory
    run.fresh_bytes_per_s = 1e9;
    compare_arms(&limit);
    EXPECT_NEAR(*run.figures.first_formula_ms, 700, 1e-9);  // 400 MB at 1 GB/s, 600 MB at 2 GB/s
    EXPECT_NEAR(*run.figures.first_ratio, 1 / 0.7, 1e-9);
    limit.arms[0].runs[0].figures.prefill_ms = 900;
    compare_arms(&limit);
    EXPECT_NEAR(*run.figures.first_formula_ms, 900, 1e-9);
}

TEST(BenchReport, MediansLeaveFailedRunsOut) {
    LimitRuns limit = some_limit();
    limit.arms[1].runs[1].error = "killed by the memory limit";
    const auto s = spread(limit.arms[1].runs, &Figures::tokens_per_s);
    EXPECT_NEAR(s->median, 1.25, 1e-9);
    EXPECT_EQ(s->least, 1);
    EXPECT_EQ(s->most, 1.5);
    EXPECT_FALSE(spread({}, &Figures::tokens_per_s).has_value());
}

TEST(BenchReport, FailuresAndOtherLogitsAreNotWell) {
    BenchOptions options;
    options.model = "some.gguf";
    BenchReport report;
    report.options = &options;
    report.limits = {some_limit()};
    EXPECT_TRUE(all_well(report));
    EXPECT_THAT(bench_text(report), HasSubstr("50 %: uffd is 2.00 times mmap"));
    EXPECT_THAT(bench_text(report), Not(HasSubstr("NOT THE SAME")));
    report.limits[0].arms[1].runs[2].logits_hash = "b";
    EXPECT_FALSE(all_well(report));
    EXPECT_THAT(bench_text(report), HasSubstr("NOT THE SAME"));
    report.limits[0].arms[1].runs[2].counts = kSlowCounts;  // fewer steps have another hash
    EXPECT_TRUE(all_well(report));
    report.limits[0].arms[0].runs[0].error = "exit status 1";
    EXPECT_FALSE(all_well(report));
    EXPECT_THAT(bench_text(report), HasSubstr("50 %, resident: exit status 1"));
    const auto j = nlohmann::json::parse(bench_json(report));
    EXPECT_EQ(j["limits"][0]["arms"][0]["runs"][0]["error"], "exit status 1");
    EXPECT_EQ(j["limits"][0]["uffd_speed_over"]["mmap"], 2.0);
    EXPECT_TRUE(j["limits"][0]["arms"][0]["formula_s"].is_null());
}

}  // namespace
}  // namespace weir
