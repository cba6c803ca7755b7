// `weir convert` and `weir verify`: into the native format, and whether a file of it is whole.
#include <CLI/CLI.hpp>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "runtime/cli/commands.h"
#include "runtime/cli/format.h"
#include "runtime/cli/loaded_model.h"
#include "runtime/cli/option_checks.h"
#include "runtime/cli/size_arg.h"
#include "runtime/cli/terminal.h"
#include "runtime/engine/second_moments.h"
#include "runtime/engine/team.h"
#include "runtime/error.h"
#include "runtime/model/native_convert.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
    std::string input;
    std::string output;
    bool force = false;
    ConvertOptions convert;
    std::optional<SizeArg> band;
    std::string calibration;
    size_t tokens = 16u << 10;
    int alone = 0;  // a level to learn for without the others
};

// A pass of the calibration text each, of which the last tokens show what the head takes in.
constexpr size_t kWindow = 256, kHeadTokens = 64;
// For moments of layers that are taken together. Gemma 3 270M needs 440 MB.
constexpr uint64_t kMomentBytes = 512u << 20;

// The least and the most that --band takes: less is all padding, more than any budget wants to hold at a time.
constexpr uint64_t kLeastBand = 16u << 10, kMostBand = 1u << 30;

std::string share(uint64_t done, uint64_t total, Clock::time_point start) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return format_fixed(100 * static_cast<double>(done) / static_cast<double>(std::max<uint64_t>(1, total)), 0) + " % of " +
           format_bytes(total) + ", " + format_fixed(static_cast<double>(done) / 1e6 / std::max(seconds, 1e-3), 0) + " MB/s";
}

void check_output(const Options& o) {
    if (o.output == "-") throw UsageError("a native file is written to a file, not to stdout");
    struct stat in {}, out {};
    if (::stat(o.output.c_str(), &out) != 0) return;
    if (::stat(o.input.c_str(), &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        throw UsageError(o.output + ": is the file to be converted; name another");
    if (!o.force) throw UsageError(o.output + ": is there already; name another, or give --force to replace it");
}

// The source model and what its matrices take in on the calibration text.
class Calibration {
  public:
    Calibration(const Options& o, std::function<void(size_t, size_t)> progress) : model_(o.input, "") {
        std::vector<TokenId> ids = model_.tokenizer->encode(read_text(o.calibration, "the calibration text"), true, false);
        const size_t there = ids.size() / kWindow, windows = std::min(there, std::max<size_t>(1, o.tokens / kWindow));
        if (there == 0) throw Error(o.calibration + ": has " + std::to_string(ids.size()) + " tokens, and a window takes " + std::to_string(kWindow));
        std::vector<TokenId> chosen;  // from all over the text
        for (size_t w = 0; w < windows; ++w) {
            const auto window = std::span<const TokenId>(ids).subspan(w * there / windows * kWindow, kWindow);
            chosen.insert(chosen.end(), window.begin(), window.end());
            if (model_.tokenizer->adds_bos() && model_.tokenizer->bos()) chosen[w * kWindow] = *model_.tokenizer->bos();
        }
        const ModelShare share = {&model_, {kWindow, kHeadTokens, kWindow, o.convert.threads}};
        StoreOptions store;
        store.mode = PagingMode::kMmap;
        const kernels::KernelSet& kernels = chosen_kernels();
        loaded_ = std::make_unique<LoadedModel>(share, store, KvType{}, kernels, ActivationForms::product());
        moments_ = std::make_unique<SecondMoments>(SecondMoments::Source{&loaded_->model, &loaded_->forward, &loaded_->cache, &loaded_->team, &kernels},
                                                   std::move(chosen), kWindow, kHeadTokens, kMomentBytes, std::move(progress));
    }
    SecondMoments& moments() { return *moments_; }

  private:
    const ModelFile model_;
    std::unique_ptr<LoadedModel> loaded_;
    std::unique_ptr<SecondMoments> moments_;
};

int convert(Options& o) {
    check_output(o);
    if (o.band) {
        o.convert.band_bytes = o.band->of(0);
        if (o.convert.band_bytes < kLeastBand || o.convert.band_bytes > kMostBand) throw UsageError("--band takes 16K to 1G");
    }
    const GgufFile source = GgufFile::open(o.input);
    const ModelConfig config = read_config(source);
    if (o.convert.threads == 0) o.convert.threads = default_thread_count();
    const Clock::time_point start = Clock::now();
    const StopSignals signals;
    Conversion result;
    try {
        ProgressLine progress;
        std::unique_ptr<Calibration> calibration;
        if (!o.calibration.empty()) {
            if (o.alone == 3) o.convert.learn_for = kernels::LearnFor::kThree;
            if (o.alone == 4) o.convert.learn_for = kernels::LearnFor::kFour;
            calibration = std::make_unique<Calibration>(o, [&](size_t done, size_t windows) {
                if (progress.due()) progress.show("calibration text: window " + std::to_string(done) + " of " + std::to_string(windows));
                if (signals.asked() != 0) throw Error(o.input + ": conversion stopped; nothing is left of it");
            });
            o.convert.feedback = [&](const std::string& tensor) { return calibration->moments().feedback(tensor); };
        }
        result = convert_to_native(source, config, o.output, o.convert, [&](uint64_t done, uint64_t total) {
            if (progress.due()) progress.show(share(done, total, start));
            return signals.asked() == 0;
        });
    } catch (const Error& error) {
        if (signals.asked() == 0) throw;
        complain(error.what());
        return 128 + signals.asked();
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::fprintf(stderr, "%s: %s (%llu bytes) in %s s; %s bits a weight in planes, %s kept as they are\n", printable(o.output, SIZE_MAX).c_str(),
                 format_bytes(result.file_bytes).c_str(), static_cast<unsigned long long>(result.file_bytes), format_fixed(seconds, 1).c_str(),
                 format_fixed(8 * static_cast<double>(result.plane_bytes) / static_cast<double>(std::max<uint64_t>(1, result.weights)), 2).c_str(),
                 format_bytes(result.kept_bytes).c_str());
    if (result.kept_matrices != 0)
        std::fprintf(stderr, "weir: note: %zu matrices have rows that 32 does not divide: they keep their type, at every level (inspect names them)\n",
                     result.kept_matrices);
    if (o.calibration.empty())
        std::fprintf(stderr, "weir: warning: rounded without calibration text: levels below 4 cost much quality; --calibration FILE learns the rounding\n");
    return 0;
}

int verify(const std::string& path) {
    const GgufFile file = GgufFile::open(path);
    const Clock::time_point start = Clock::now();
    const StopSignals signals;
    try {
        ProgressLine progress;
        verify_native(file, [&](uint64_t done, uint64_t total) {
            if (progress.due()) progress.show(share(done, total, start));
            return signals.asked() == 0;
        });
    } catch (const Error& error) {
        if (signals.asked() == 0) throw;
        complain(error.what());
        return 128 + signals.asked();
    }
    write_stdout(printable(path, SIZE_MAX) + ": whole\n");
    return 0;
}

}  // namespace

Command add_convert(CLI::App& app) {
    const auto options = std::make_shared<Options>();
    CLI::App* const command = app.add_subcommand("convert", "write a GGUF model in the native format, for --precision");
    command->add_option("input", options->input, "GGUF file")->required()->type_name("IN.gguf");
    command->add_option("output", options->output, "native file to write")->required()->type_name("OUT.weir");
    command->add_flag("--force", options->force, "replace a file that is there");
    CLI::Option* const calibration = command->add_option("--calibration", options->calibration, "learn the rounding from what matrices take in on this text (not with experts)")->type_name("FILE");
    command->add_option("--calibration-tokens", options->tokens, "of it, from all over the text")->capture_default_str()->check(whole_number(1, 1u << 24));
    command->add_option("--learn-level", options->alone, "learn for this level alone, at the others' cost: to see what nesting costs")
        ->check(CLI::IsMember({3, 4}))->needs(calibration);
    command->add_option("-t,--threads", options->convert.threads, "threads (default: physical cores)")->check(whole_number(1, 256));
    command->add_option_function<std::string>("--band", [options](const std::string& text) { options->band = parse_size(text, "--band"); },
        "rows that are walked together, as stored (default: a 64th of the matrices, at most 4M); less for budgets below 64M")->type_name("SIZE");
    return [options] { return convert(*options); };
}

Command add_verify(CLI::App& app) {
    const auto path = std::make_shared<std::string>();
    CLI::App* const command = app.add_subcommand("verify", "hold a native file against its checksums");
    command->add_option("model,-m,--model", *path, "native file")->required()->type_name("FILE.weir");
    return [path] { return verify(*path); };
}

}  // namespace weir
