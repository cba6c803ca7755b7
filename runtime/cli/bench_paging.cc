#include "runtime/cli/bench_paging.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>
#include <thread>

#include "pager/device_probe.h"
#include "pager/file.h"
#include "pager/system.h"
#include "runtime/cli/child.h"
#include "runtime/cli/format.h"
#include "runtime/cli/option_checks.h"
#include "runtime/cli/page_cache.h"
#include "runtime/engine/memory_limits.h"
#include "runtime/engine/team.h"
#include "runtime/error.h"
#include "runtime/model/config.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_map.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

// Reads for the device's speed: enough that a drive's own cache and a lucky moment do not decide, little beside the runs.
constexpr pager::DeviceProbe kProbe = {16, 1u << 30, 3.0, 0, pager::ReaderRung::kAuto};
constexpr double kFresh_s = 30;
// After a run a virtual machine reports the memory that became free to its host, which takes it back: work on the same cores
// for some seconds (the first token of a run that followed at once: 1.2 s instead of 0.95). Each run begins after it.
constexpr double kSettleBytesPerS = 400e6;
constexpr double kSettle_s = 5;
constexpr int kFetch_s = 600;

const char* const kArms[] = {"resident", "mmap", "advised", "uffd"};

// The words of a list with commas or blanks between them.
std::vector<std::string> words_of(std::string text) {
    std::replace(text.begin(), text.end(), ',', ' ');
    std::istringstream in(text);
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    return words;
}

std::vector<unsigned> parse_limits(const std::string& text) {
    std::vector<unsigned> out;
    for (const std::string& word : words_of(text)) {
        unsigned percent = 0;
        const char* const end = word.data() + word.size();
        const auto [rest, error] = std::from_chars(word.data(), end, percent);
        if (error != std::errc() || rest != end || percent < 1 || percent > 1000)
            throw UsageError("--limits " + text + ": write per cent, 1 to 1000, such as 75,50");
        out.push_back(percent);
    }
    if (out.empty()) throw UsageError("--limits: none given; write per cent of the file, such as 75,50");
    return out;
}

std::vector<std::string> parse_arms(const std::string& text) {
    std::vector<std::string> out;
    for (const std::string& word : words_of(text)) {
        if (std::find(std::begin(kArms), std::end(kArms), word) == std::end(kArms))
            throw UsageError("--arms " + word + ": unknown; there are resident, mmap, advised and uffd");
        if (std::find(out.begin(), out.end(), word) == out.end()) out.push_back(word);
    }
    return out;
}

// bench/peers of the tree that this program was built in, or of the one we stand in.
std::optional<fs::path> find_peers() {
    std::error_code none;
    for (const fs::path& start : {fs::read_symlink("/proc/self/exe", none).parent_path(), fs::current_path(none)}) {
        for (fs::path at = start; !at.empty(); at = at.parent_path()) {
            const fs::path script = at / "bench/peers/llama_cpp.sh";
            if (fs::exists(script, none)) return script;
            if (at == at.root_path()) break;
        }
    }
    return std::nullopt;
}

// Adds the prebuilt llama.cpp as an arm; where it cannot be had, says why and goes on without.
void add_llama_cpp(BenchOptions* o, BenchReport* report, const StopSignals& signals) {
    const std::optional<fs::path> script = find_peers();
    if (!script) {
        report->notes.push_back("--peer left out: bench/peers/llama_cpp.sh is neither above this program nor above this folder");
        return;
    }
    if (stderr_is_terminal()) std::fprintf(stderr, "fetching the prebuilt llama.cpp, where it is not here yet ...\n");
    const ChildEnd end = run_child({script->string(), "fetch"}, signals, kFetch_s);
    if (end.status != 0) {
        report->notes.push_back("--peer left out: " + end.last_words());
        return;
    }
    o->peers.push_back({"llama.cpp", script->string() + " run {model} {threads} {warm} {tokens} {context} {prompt}"});
}

double probe_device(const std::string& model, BenchReport* report) {
    try {
        const pager::File file = pager::File::open(model, pager::IoMode::kAuto);
        const pager::DeviceSpeed speed = pager::probe_device(file, kProbe);
        report->device = std::string(file.direct() ? "direct" : "buffered") + " reads of " + format_bytes(speed.read_bytes) + ", " +
                         std::to_string(speed.depth) + " in flight, into " + (speed.huge_frames ? "huge pages" : "small pages");
        return speed.bytes_per_s;
    } catch (const std::runtime_error& e) {
        throw Error(e.what());
    }
}

// The device's speed into as much untouched memory as a run under this limit takes. Where a machine's memory is given and
// taken back by a host, the first to touch it pays several times: so once for the sake of what comes after, once to measure.
double probe_fresh(const std::string& model, uint64_t limit_bytes) {
    try {
        const pager::File file = pager::File::open(model, pager::IoMode::kAuto);
        pager::DeviceProbe probe = kProbe;
        probe.fresh = true;
        probe.bytes = std::min({limit_bytes, file.size(), read_memory_limits().sensible()});
        probe.seconds_limit = kFresh_s;
        pager::probe_device(file, probe);
        return pager::probe_device(file, probe).bytes_per_s;
    } catch (const std::runtime_error& e) {
        throw Error(e.what());
    }
}

void settle(uint64_t model_bytes, const StopSignals& signals) {
    const double seconds = std::min(kSettle_s, static_cast<double>(model_bytes) / kSettleBytesPerS);
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < until && signals.asked() == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(std::min<int64_t>(50, std::llround(1000 * seconds))));
}

// Counts for the arm's next run: an arm that was slow under a wider limit is slow under this one.
TokenCounts counts_for(const BenchOptions& o, const std::map<std::string, double>& last_speed, const std::string& arm) {
    const auto it = last_speed.find(arm);
    if (it == last_speed.end() || it->second >= kSlowTokensPerS) return o.counts;
    return slow_counts(o.counts);
}

void measure_limit(const BenchOptions& o, BenchReport* report, LimitRuns* limit, std::map<std::string, double>* last_speed,
                   const StopSignals& signals) {
    for (const std::string& name : o.arms) limit->arms.push_back({name, {}});
    for (const Peer& peer : o.peers) limit->arms.push_back({peer.name, {}});
    const bool progress = stderr_is_terminal();
    for (size_t turn = 0; turn < o.runs && signals.asked() == 0; ++turn) {
        std::vector<double> probes;
        for (size_t i = 0; i < limit->arms.size() && signals.asked() == 0; ++i) {
            Arm& arm = limit->arms[i];
            settle(report->model_bytes, signals);
            probes.push_back(probe_device(o.model, report));
            if (progress) {
                std::fprintf(stderr, "%u %% of %s, turn %zu of %zu, %s ...", limit->percent, format_bytes(report->model_bytes).c_str(),
                             turn + 1, o.runs, arm.name.c_str());
                std::fflush(stderr);
            }
            const TokenCounts counts = counts_for(o, *last_speed, arm.name);
            std::optional<double> fresh;
            if (arm.name == "uffd") fresh = probe_fresh(o.model, limit->limit_bytes);
            ArmRun run = i < o.arms.size()
                             ? run_arm(o, report->place, arm.name, limit->limit_bytes, counts, signals)
                             : run_peer(o, report->place, o.peers[i - o.arms.size()], limit->limit_bytes, counts, signals);
            run.turn = turn;
            run.fresh_bytes_per_s = fresh;
            if (run.figures.tokens_per_s) (*last_speed)[arm.name] = *run.figures.tokens_per_s;
            if (progress)
                std::fprintf(stderr, " %s\n", run.error.empty() ? (format_fixed(*run.figures.tokens_per_s, 2) + " tokens/s").c_str() : run.error.c_str());
            arm.runs.push_back(std::move(run));
        }
        if (!probes.empty()) limit->device_bytes_per_s.push_back(median(probes));
    }
    compare_arms(limit);
}

// What run would refuse is refused here, once. Returns the bytes that limits are shares of: the file's, or those that a native
// file's level 8 reads, whatever level is measured.
uint64_t look_at_model(BenchOptions* o, BenchReport* report) {
    const GgufFile file = GgufFile::open(o->model);
    const ModelConfig config = read_config(file);
    if (file.native() == nullptr) {
        if (o->precision != 0)
            throw UsageError("--precision: " + o->model + " is plain GGUF and has one precision; weir convert makes a native file of it, which has five");
        return file.file_size();
    }
    if (o->precision == 0) o->precision = 8;
    if (std::erase(o->arms, "advised") > 0) report->notes.push_back("advised left out: it pages no native files");
    const std::vector<sched::Plan> level_8 = {sched::uniform_plan(config.n_layers, 8)};
    return plan_bytes(build_model_map(file, config, pager::page_size(), false, level_8), level_8.front()).weights;
}

int bench_paging(BenchOptions o) {
    BenchReport report;
    report.options = &o;
    if (!o.no_limit) {
        try {
            report.place = find_limit_place();
        } catch (const Error& e) {
            throw Error(std::string(e.what()) + ". Root may; --no-limit compares without one");
        }
    }
    if (o.probe) return 0;
    if (o.model.empty()) throw UsageError("no model: name a GGUF file");
    report.model_bytes = look_at_model(&o, &report);
    if (o.threads == 0) o.threads = default_thread_count();
    const auto resident = std::find(o.arms.begin(), o.arms.end(), "resident");
    if (resident != o.arms.end() && read_memory_limits().sensible() < report.model_bytes) {
        o.arms.erase(resident);
        report.notes.push_back("resident left out, and with it the formula: the weights do not fit into this machine");
    }

    const StopSignals signals(true);
    if (o.fetch_peer) add_llama_cpp(&o, &report, signals);
    ReadAhead read_ahead(o.model);
    if (o.read_ahead_kib) {
        report.read_ahead_note = read_ahead.set(*o.read_ahead_kib);
        if (!report.read_ahead_note.empty()) report.notes.push_back("the machine's read-ahead was used: " + report.read_ahead_note);
    }
    report.read_ahead_kib = read_ahead.kib();
    for (const std::string& note : report.notes) std::fprintf(stderr, "weir: note: %s\n", note.c_str());

    std::map<std::string, double> last_speed;
    for (const unsigned percent : o.limits) {
        LimitRuns limit;
        limit.percent = percent;
        limit.limit_bytes = report.model_bytes * percent / 100;
        measure_limit(o, &report, &limit, &last_speed, signals);
        report.limits.push_back(std::move(limit));
        if (signals.asked() == 0) continue;
        complain("stopped; limits and read-ahead are as they were");
        return 128 + signals.asked();
    }
    write_stdout(o.json ? bench_json(report) : bench_text(report));
    return all_well(report) ? 0 : 1;
}

}  // namespace

Command add_bench_paging(CLI::App& bench) {
    const auto o = std::make_shared<BenchOptions>();
    CLI::App* const paging = bench.add_subcommand("paging", "one model by every way of paging, under the same hard memory limits");
    paging->add_option("model,-m,--model", o->model, "GGUF or native file")->type_name("FILE");
    paging->add_option("--precision", o->precision, "of a native file: the level of all its weights (default: 8)")
        ->check(CLI::IsMember({8, 6, 4, 3, 2}));
    paging->add_option_function<std::string>("--limits", [o](const std::string& text) { o->limits = parse_limits(text); },
                                             "of the whole process, in per cent of the file, or of what a native file's level 8 reads (default: 110,90,75,50,25)")->type_name("N,N...");
    paging->add_option_function<std::string>("--arms", [o](const std::string& text) { o->arms = parse_arms(text); },
                                             "default: resident,mmap,advised,uffd")->type_name("ARM,ARM...");
    paging->add_option("--runs", o->runs, "of each arm under each limit, in turn")->capture_default_str()->check(whole_number(1, 100));
    paging->add_option("--warmup", o->counts.warmup, "tokens before those that are measured")->capture_default_str()->check(whole_number(1, 10000));
    paging->add_option("--tokens", o->counts.measured, "tokens measured in each run")->capture_default_str()->check(whole_number(1, 10000));
    paging->add_option("-t,--threads", o->threads, "decode threads (default: physical cores)")->check(whole_number(1, 256));
    paging->add_option("-c,--ctx-size", o->context, "context in tokens")->capture_default_str()->check(whole_number(2, 1u << 24));
    paging->add_option("-p,--prompt", o->prompt, "text to continue")->capture_default_str()->type_name("TEXT");
    paging->add_option_function<uint64_t>("--read-ahead-kib", [o](uint64_t kib) { o->read_ahead_kib = kib; },
                                          "read-ahead of the model's device while this runs (default: as it is)")->check(whole_number(0, 1u << 20));
    paging->add_flag("--peer", o->fetch_peer, "a prebuilt llama.cpp through its mmap as one more arm, fetched by npm");
    paging->add_option_function<std::vector<std::string>>("--peer-command",
        [o](const std::vector<std::string>& texts) { for (const std::string& text : texts) o->peers.push_back(parse_peer(text, kArms)); },
        "one more arm: a driver that prints JSON, see bench/peers/README.md; may be given again")->type_name("NAME=COMMAND")->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    paging->add_flag("--no-limit", o->no_limit, "without hard limits: mmap then takes what memory it finds");
    paging->add_flag("--probe", o->probe, "only say whether a hard limit can be set here");
    paging->add_flag("--json", o->json, "one JSON object instead of a table, with each run in it");
    return [o] { return bench_paging(*o); };
}

}  // namespace weir
