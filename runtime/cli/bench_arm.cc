// One run of one arm of `weir bench paging`: the page cache emptied, a fresh group with its limit, the program inside, and
// what it says of itself.
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "runtime/cli/bench_paging.h"
#include "runtime/cli/child.h"
#include "runtime/cli/format.h"
#include "runtime/cli/page_cache.h"
#include "runtime/error.h"
#include "runtime/model/gguf.h"

namespace weir {
namespace {

using nlohmann::json;

// A run that takes longer is given up: 0.05 tokens/s, or a hang.
constexpr int kLongest_s = 900;
// Of the model in the page cache before a run: less is noise, more is charged to somebody else.
constexpr uint64_t kMostCached = 1u << 20;

// Drops all of its files from the page cache; what stayed there, as drop_page_cache().
std::optional<uint64_t> drop_model(const std::string& path) {
    std::optional<uint64_t> stayed;
    const GgufFile file = GgufFile::open(path);
    for (const GgufPart& part : file.parts()) {
        const std::optional<uint64_t> bytes = drop_page_cache(part.path);
        if (bytes) stayed = stayed.value_or(0) + *bytes;
    }
    return stayed;
}

void read_own(const json& said, const std::string& arm, ArmRun* run) {
    const json& paging = said.at("paging");
    const json& steady = said.at("steady");
    if (paging.at("mode") != arm) {
        run->error = "not measured: " + paging.at("fallback").get<std::string>();
        return;
    }
    if (steady.is_null()) {
        run->error = "the answer ended within the warm-up";
        return;
    }
    Figures& f = run->figures;
    const auto tokens = steady.at("tokens").get<double>();
    f.tokens_per_s = tokens / steady.at("seconds").get<double>();
    f.bytes_per_token = steady.at("io_read_bytes").get<double>() / tokens;
    f.cpu_s_per_token = steady.at("cpu_seconds").get<double>() / tokens;
    f.major_faults_per_token = steady.at("major_faults").get<double>() / tokens;
    if (arm == "uffd" || arm == "advised") {
        f.stall_ms_per_token = steady.at("stall_ms").get<double>() / tokens;
        const json& must_read = paging.at("must_read_bytes_per_token");
        if (!must_read.is_null()) f.must_read_bytes = must_read.get<double>();
    }
    if (arm == "uffd") f.faults_per_token = steady.at("faults").get<double>() / tokens;
    f.first_token_ms = number_of(said.at("timings"), {"first_token_ms"});
    f.prefill_ms = *f.first_token_ms - said.at("timings").at("load_ms").get<double>();
    if (arm == "uffd") {
        f.first_token_bytes = number_of(paging, {"first_token_bytes_read"});
        f.frame_bytes = number_of(paging, {"frame_bytes"});
        if (const auto experts = said.find("experts"); experts != said.end() && experts->at("reading_s").get<double>() > 0) {
            f.expert_bytes_per_s = experts->at("absent_bytes").get<double>() * experts->at("read_amplification").get<double>() /
                                   experts->at("reading_s").get<double>();
        }
    }
    f.peak_rss_bytes = number_of(said.at("memory"), {"peak_rss_bytes"});
    run->logits_hash = said.at("logits_hash");
    run->bounded_by = paging.at("bounded_by");
}

// What any driver may print; the second names are those of drivers that count so already.
void read_peer(const json& said, ArmRun* run) {
    Figures& f = run->figures;
    f.tokens_per_s = number_of(said, {"tokens_per_s", "decode_tokens_per_s_after_first_third", "decode_tokens_per_s"});
    f.bytes_per_token = number_of(said, {"bytes_per_token", "bytes_read_per_token"});
    f.cpu_s_per_token = number_of(said, {"cpu_s_per_token"});
    f.major_faults_per_token = number_of(said, {"major_faults_per_token"});
    f.first_token_ms = number_of(said, {"first_token_ms"});
    f.peak_rss_bytes = number_of(said, {"peak_rss_bytes"});
    if (!f.tokens_per_s) run->error = "its JSON has no tokens_per_s";
}

template <typename Read>
ArmRun run_inside(const BenchOptions& o, const LimitPlace& place, uint64_t limit_bytes, const std::vector<std::string>& command,
                  const TokenCounts& counts, const StopSignals& signals, Read&& read) {
    ArmRun run;
    run.counts = counts;
    run.cached_before = drop_model(o.model);
    if (run.cached_before.value_or(0) > kMostCached) {
        run.error = format_bytes(*run.cached_before) + " of the model stay in the page cache: another program uses it, or it lies on a file system in memory";
        return run;
    }
    ChildEnd end;
    {
        const MemoryCgroup group(place, limit_bytes);
        end = run_child(group.inside(command), signals, kLongest_s);
        run.oom_kills = group.oom_kills();
        if (const auto peak = group.peak_bytes()) run.figures.cgroup_peak_bytes = static_cast<double>(*peak);
    }
    if (end.stopped) {
        run.error = "stopped";
    } else if (end.timed_out) {
        run.error = "given up after " + std::to_string(kLongest_s) + " s";
    } else if (run.oom_kills > 0) {
        run.error = "killed by the memory limit";
    } else if (end.status != 0) {
        const std::string words = end.last_words();
        run.error = "exit status " + std::to_string(end.status) + (words.empty() ? "" : ": " + words);
    } else {
        try {
            read(end.out, &run);
        } catch (const json::exception& e) {
            run.error = std::string("its output is not what was expected: ") + e.what();
        }
    }
    return run;
}

}  // namespace

ArmRun run_arm(const BenchOptions& o, const LimitPlace& place, const std::string& arm, uint64_t limit_bytes,
               const TokenCounts& counts, const StopSignals& signals) {
    // This very program, even where its file was replaced since.
    std::vector<std::string> command = {"/proc/" + std::to_string(::getpid()) + "/exe",
                                        "run", o.model,
                                        "-p", o.prompt,
                                        "-n", std::to_string(counts.warmup + counts.measured),
                                        "--warmup", std::to_string(counts.warmup),
                                        "-c", std::to_string(o.context),
                                        "-t", std::to_string(o.threads),
                                        "--temp", "0", "--ignore-eos", "--json",
                                        "--paging", arm};
    if (o.precision != 0) command.insert(command.end(), {"--precision", std::to_string(o.precision)});
    const bool limited = arm != "resident";
    if (arm == "uffd" || arm == "advised")
        command.insert(command.end(), {"--ram", std::to_string(limit_bytes > 2 * kKernelBytes ? limit_bytes - kKernelBytes : kKernelBytes)});
    return run_inside(o, limited ? place : LimitPlace{}, limit_bytes, command, counts, signals,
                      [&arm](const std::string& out, ArmRun* run) { read_own(json::parse(out), arm, run); });
}

ArmRun run_peer(const BenchOptions& o, const LimitPlace& place, const Peer& peer, uint64_t limit_bytes,
                const TokenCounts& counts, const StopSignals& signals) {
    const std::pair<const char*, std::string> places[] = {
        {"{model}", o.model},
        {"{threads}", std::to_string(o.threads)},
        {"{warm}", std::to_string(counts.warmup)},
        {"{tokens}", std::to_string(counts.measured)},
        {"{total}", std::to_string(counts.warmup + counts.measured)},
        {"{context}", std::to_string(o.context)},
        {"{prompt}", o.prompt},
    };
    return run_inside(o, place, limit_bytes, peer_command(peer, places), counts, signals,
                      [](const std::string& out, ArmRun* run) { read_peer(peer_figures(out), run); });
}

}  // namespace weir
