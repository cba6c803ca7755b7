#include "schedtool/token_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace weir::sched {
namespace {

using testing::HasSubstr;

std::string small_trace() {
    const std::vector<RatedPlan> plans = {{uniform_plan(2, 8), 900, 0}, {uniform_plan(2, 3), 400, 0.25}};
    const std::vector<TokenAtPlan> one = {{{1.5, 0.25}, 0}, {{2, 0.125}, 1e-7}}, two = {{{0, 1}, 0.5}, {{3, 0}, 0.75}};
    return trace_header("m", plans) + trace_line(0, 7, one) + trace_line(4, 128000, two);
}

TEST(TokenTrace, IsReadBackAsWritten) {
    const TokenTrace trace = read_trace(small_trace(), "x");
    ASSERT_EQ(trace.plans.size(), 2u);
    EXPECT_EQ(trace.plans[1].plan, uniform_plan(2, 3));
    EXPECT_EQ(trace.model, "m");
    EXPECT_EQ(trace.plans[1].bytes, 400u);
    EXPECT_EQ(trace.plans[1].kl, 0.25);
    EXPECT_EQ(trace.windows, (std::vector<size_t>{0, 4}));
    EXPECT_EQ(trace.inputs, (std::vector<int32_t>{7, 128000}));
    ASSERT_EQ(trace.n_tokens(), 2u);
    EXPECT_EQ(trace.at(0)[0].signal.entropy, 1.5);
    EXPECT_EQ(trace.at(0)[1].kl, 1e-7);
    EXPECT_EQ(trace.at(1)[1].signal.margin, 0);
    EXPECT_EQ(trace_header(trace.model, trace.plans) + trace_line(0, 7, trace.at(0)) + trace_line(4, 128000, trace.at(1)), small_trace());
}

TEST(TokenTrace, RefusesWhatIsNone) {
    const auto why_not = [](const std::string& text) -> std::string {
        try {
            read_trace(text, "t.jsonl");
        } catch (const std::runtime_error& error) {
            return error.what();
        }
        return "";
    };
    const auto changed = [&](const std::string& from, const std::string& to) {
        std::string text = small_trace();
        text.replace(text.find(from), from.size(), to);
        return why_not(text);
    };
    EXPECT_EQ(why_not(small_trace()), "");
    for (const char* const text : {"", "7\n", "[]", "{}\n{}", "\n\n"})
        EXPECT_THAT(why_not(text), HasSubstr("t.jsonl: is no trace"));
    EXPECT_THAT(why_not(small_trace().substr(0, small_trace().find('\n') + 1)), HasSubstr("holds none"));
    EXPECT_THAT(why_not(small_trace().substr(0, small_trace().size() - 9)), HasSubstr("line 3 is no token's"));
    EXPECT_THAT(changed("\"weir_token_trace\":2", "\"weir_token_trace\":9"), HasSubstr("another version"));
    EXPECT_THAT(changed("\"model\":\"m\"", "\"model\":7"), HasSubstr("line 1 has no \"model\""));
    EXPECT_THAT(changed("\"plans\":[", "\"plans\":[7,"), HasSubstr("line 1: has a plan without bytes"));
    EXPECT_THAT(changed("\"plans\":[", "\"plans\":[{\"bytes\":1,\"predicted_kl\":0,\"plan\":{\"layers\":7}},"),
                HasSubstr("line 1: has a plan without bytes"));
    EXPECT_THAT(changed("\"plans\":", "\"pans\":"), HasSubstr("no list of plans"));
    EXPECT_THAT(changed("\"bytes\":900", "\"bytes\":300"), HasSubstr("finest first"));
    EXPECT_THAT(changed("\"head\":8", "\"head\":5"), HasSubstr("t.jsonl"));
    EXPECT_THAT(changed("\"window\":4", "\"window\":-4"), HasSubstr("line 3 is no token's"));
    EXPECT_THAT(changed("\"input\":7", "\"input\":-7"), HasSubstr("line 2 has no \"input\""));
    EXPECT_THAT(changed("\"input\":128000", "\"input\":2147483648"), HasSubstr("line 3 has no \"input\""));
    EXPECT_THAT(changed("\"window\":0", "\"window\":5"), HasSubstr("line 3 is of an earlier window"));
    EXPECT_THAT(changed("\"kl\":[0,", "\"kl\":["), HasSubstr("line 2 has no \"kl\""));
    EXPECT_THAT(changed("\"margin\":[1,", "\"margin\":[1e999,"), HasSubstr("line 3"));
}

}  // namespace
}  // namespace weir::sched
