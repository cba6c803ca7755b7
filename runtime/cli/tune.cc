#include "runtime/cli/tune.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>

#include "runtime/cli/format.h"
#include "runtime/cli/loaded_model.h"
#include "runtime/cli/terminal.h"
#include "runtime/engine/budget.h"
#include "runtime/engine/memory_limits.h"
#include "runtime/engine/tune.h"
#include "runtime/error.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

std::string shown(const std::string& path) { return printable(path, SIZE_MAX); }

// Nothing but the weights may differ.
void check_pair(const ModelFile& native, const ModelFile& source) {
    if (native.file.native() == nullptr)
        throw UsageError(
            native.file.path() +
            ": is plain GGUF, which has one precision and no scales to tune; weir convert makes a native file of it");
    if (source.file.native() != nullptr)
        throw UsageError("--source: " + source.file.path() + " is a native file; give the GGUF file that " +
                         native.file.path() + " was made from");
    const ModelConfig &a = native.config, &b = source.config;
    const bool same = std::strcmp(a.architecture.name, b.architecture.name) == 0 && a.n_layers == b.n_layers &&
                      a.dim == b.dim && a.n_heads == b.n_heads && a.n_kv_heads == b.n_kv_heads &&
                      a.head_dim == b.head_dim && a.ffn_dim == b.ffn_dim && a.n_vocab == b.n_vocab &&
                      a.tied_head == b.tied_head;
    if (!same) throw UsageError("--source: " + source.file.path() + " is another model than " + native.file.path());
    if (a.n_experts != 0)
        throw Error(native.file.path() +
                    ": is a mixture of experts, which cannot be tuned: experts see too little of a calibration text");
}

// Samples from all over the text, in an order that jumps about in it: steps of the golden section.
std::vector<TokenId> samples_of(const ModelFile& model, const TuneCommand& o, size_t tokens) {
    std::vector<TokenId> ids = model.tokenizer->encode(read_text(o.run.prompt_file, "the text"), true, false);
    const size_t there = ids.size() / tokens, n = std::min(there, o.samples);
    if (n == 0)
        throw Error("the text has " + std::to_string(ids.size()) + " tokens, and a sample takes " +
                    std::to_string(tokens) + " (-c)");
    size_t step = std::max<size_t>(1, static_cast<size_t>(0.618 * static_cast<double>(n)));
    while (std::gcd(step, n) != 1) ++step;
    std::vector<TokenId> chosen;
    for (size_t i = 0; i < n; ++i) {
        const auto from = std::span<const TokenId>(ids).subspan(i * step % n * there / n * tokens, tokens);
        chosen.insert(chosen.end(), from.begin(), from.end());
        if (model.tokenizer->adds_bos() && model.tokenizer->bos()) chosen[i * tokens] = *model.tokenizer->bos();
    }
    return chosen;
}

// Of all that the result depends on.
uint64_t key_of(const ModelFile& native, const ModelFile& source, const std::vector<TokenId>& ids,
                const TuneOptions& options) {
    struct stat status {};
    ::stat(source.file.path().c_str(), &status);
    std::string text = native_fingerprint(*native.file.native()) + ' ' +
                       std::to_string(native_checksum(std::as_bytes(std::span(ids)))) + ' ' +
                       std::to_string(source.file.file_size()) + ' ' + std::to_string(status.st_mtim.tv_sec) + ' ' +
                       std::to_string(status.st_mtim.tv_nsec) + ' ' + std::to_string(options.tokens) + ' ' +
                       std::to_string(options.batch);
    text += ' ' + std::to_string(options.head_tokens);
    for (const kernels::Level level : options.levels) text += ' ' + std::to_string(static_cast<int>(level));
    return native_checksum(std::as_bytes(std::span(text)));
}

std::string levels_text(const std::vector<int>& levels) {
    std::string text;
    for (const int level : levels) text += (text.empty() ? "" : " and ") + std::to_string(level);
    return text;
}

// "layer 3 of 8, level 3"
std::string place(const TuneProgress& at, const TuneOptions& options, size_t n_layers) {
    const std::string where =
        at.layer == n_layers ? "the head" : "layer " + std::to_string(at.layer + 1) + " of " + std::to_string(n_layers);
    return where + (at.level < options.levels.size()
                        ? ", level " + std::to_string(static_cast<int>(options.levels[at.level]))
                        : ", the source's");
}

}  // namespace

int tune(const TuneCommand& o) {
    const std::string output = o.output.empty() ? o.run.model : o.output;
    const ModelFile native(o.run.model, o.run.pre_tokenizer), source(o.source, o.run.pre_tokenizer);
    check_pair(native, source);
    struct stat there {};
    if (output != o.run.model && !o.force && ::stat(output.c_str(), &there) == 0)
        throw UsageError(output + ": is there already; name another, or give --force to replace it");
    TuneOptions options;
    options.tokens = o.run.context;
    options.levels.clear();
    for (const int level : o.levels) options.levels.push_back(static_cast<kernels::Level>(level));
    const std::vector<TokenId> ids = samples_of(native, o, options.tokens);
    const size_t samples = ids.size() / options.tokens, n_layers = native.config.n_layers;
    options.batch = std::min(options.batch, samples);
    const size_t threads = o.run.threads != 0 ? o.run.threads : default_thread_count();

    const uint64_t stream = Tuner::stream_bytes(native.config, samples, options),
                   scales = Tuner::scale_bytes(native.file, options);
    const uint64_t beside = TuneJournal::bytes(stream, Tuner::streams(options), scales);
    const uint64_t memory = Tuner::bytes(native.config, options, threads);
    if (const uint64_t here = resident_now(); o.run.ram && o.run.ram->of(read_memory_limits().whole()) < here + memory)
        throw UsageError("--ram: tuning takes " + mib(here + memory) +
                         " of this model: a layer, or the head, in float, and " + std::to_string(options.batch) +
                         " samples of " + std::to_string(options.tokens) + " tokens (-c)");

    StoreOptions mapped;
    mapped.mode = PagingMode::kMmap;
    const auto source_store = WeightStore::open(source.file, source.config, mapped);
    const auto native_store = WeightStore::open(native.file, native.config, mapped);
    const Model model = bind_model(source.file, source.config, *source_store);
    Team team(threads);
    const TuneProducts products(team, chosen_kernels());
    TuneJournal journal(output + ".tuning", key_of(native, source, ids, options), stream, Tuner::streams(options),
                        scales, o.force);
    Tuner tuner({&model, source_store.get(), &native.file, native_store.get()}, products, ids, options, journal);

    const size_t first = journal.layers_done(), all = tuner.layers();
    std::fprintf(
        stderr,
        "weir: tuning levels %s of %zu layers%s on %zu samples of %zu tokens: about %s s; %s of memory, %s in %s\n",
        levels_text(o.levels).c_str(), std::min(n_layers, all) - std::min(n_layers, first),
        all > n_layers ? " and the head" : "", samples, options.tokens, format_fixed(tuner.seconds_left(), 0).c_str(),
        format_bytes(memory).c_str(), format_bytes(beside).c_str(), shown(output + ".tuning").c_str());
    if (first != 0) std::fprintf(stderr, "weir: going on where it was, after %zu of %zu\n", first, all);

    const StopSignals signals;
    const auto begin = Clock::now();
    try {
        ProgressLine progress;
        for (size_t layer = first; layer < all; ++layer) {
            tuner.tune_layer([&](const TuneProgress& at) {
                if (signals.asked() != 0)
                    throw Error("stopped; " + std::to_string(layer) + " of " + std::to_string(all) + " are in " +
                                output + ".tuning, the same command goes on from there");
                if (progress.due())
                    progress.show(place(at, options, n_layers) + ", sample " + std::to_string(at.samples) + " of " +
                                  std::to_string(samples));
            });
        }
        write_rescaled(
            native.file, output,
            [&](size_t part, uint64_t band, size_t run, std::span<std::byte> bytes) {
                tuner.new_scales(part, band, run, bytes);
            },
            [&](uint64_t done, uint64_t total) {
                if (progress.due())
                    progress.show("writing and verifying " + format_bytes(done) + " of " + format_bytes(total));
                return signals.asked() == 0;
            });
    } catch (const Error& error) {
        if (signals.asked() == 0) throw;
        complain(error.what());
        return 128 + signals.asked();
    }
    journal.discard();
    std::fprintf(stderr,
                 "weir: %s: tuned in %.1f s and verified; tables of plans are of the old scales: weir calibrate makes "
                 "a new one\n",
                 shown(output).c_str(), std::chrono::duration<double>(Clock::now() - begin).count());
    return 0;
}

}  // namespace weir
