// Paging changes where the weights are and nothing else: the forward pass over the pager and over an advised mapping, from
// the least number of frames to all of them, gives the bits that resident weights give.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "runtime/error.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/tiny_model.h"
#include "tests/pager/live.h"

namespace weir::test {
namespace {

using kernels::Activation;
using kernels::Type;

std::vector<int32_t> some_ids(size_t n) {
    std::mt19937 random(21);
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 300);
    return ids;
}

void expect_same_bits(PagingMode mode, const TinyShape& shape, std::initializer_list<uint64_t> budgets) {
    const TinyModelFile file(shape);
    const auto ids = some_ids(14);
    EngineOptions options;
    options.paging = PagingMode::kResident;
    options.forms = ActivationForms::product();
    const auto expected = Engine(file.path(), options).logits(ids, 5);
    options.paging = mode;
    for (const uint64_t budget : budgets) {
        for (const bool gates : {true, false}) {
            for (const size_t threads : {1, 2}) {
                SCOPED_TRACE(std::to_string(budget) + " bytes of frames, " + std::to_string(threads) + " threads, gates " +
                             (gates ? "on" : "off"));
                options.frame_bytes = budget;
                options.gates = gates;
                options.threads = threads;
                Engine engine(file.path(), options);
                for (const size_t chunk : {1, 5}) {
                    engine.cache->set_length(0);
                    const auto logits = engine.logits(ids, chunk);
                    ASSERT_EQ(0, std::memcmp(expected.data(), logits.data(), expected.size() * sizeof(float)));
                }
                // Fewer workers from pass to pass, and all again: who sits out holds nothing back and changes nothing.
                engine.cache->set_length(0);
                for (size_t i = 0; i < ids.size(); ++i) {
                    engine.forward->set_workers(1 + i % 3 % threads);
                    const auto row = engine.forward->pass({&ids[i], 1}, 1, i + 1 < ids.size());
                    ASSERT_EQ(0, std::memcmp(&expected[i * row.size()], row.data(), row.size() * sizeof(float))) << i;
                }
                const StoreStats stats = engine.store->stats();
                // Without gates nobody waits for an advised page: the pass may be through before one was mapped.
                if (mode == PagingMode::kUffd || gates) {
                    EXPECT_GT(stats.bytes_read, 0u);
                }
                EXPECT_LE(stats.frame_bytes, budget);
            }
        }
    }
}

// Bytes of the process's mappings of a file that are in memory now, by smaps.
uint64_t mapped_pages_of(const std::string& path) {
    std::ifstream smaps("/proc/self/smaps");
    std::string line;
    bool inside = false;
    uint64_t bytes = 0;
    while (std::getline(smaps, line)) {
        unsigned long long from = 0, to = 0, kib = 0;
        if (std::sscanf(line.c_str(), "%llx-%llx ", &from, &to) == 2) inside = line.ends_with(path);
        if (inside && std::sscanf(line.c_str(), "Rss: %llu kB", &kib) == 1) bytes += kib << 10;
    }
    return bytes;
}

void drop_cache(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(::fsync(fd), 0);
    EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    ::close(fd);
}

TinyShape six_layers() {
    TinyShape shape;
    shape.n_layers = 6;
    return shape;
}

TinyShape tied_and_mixed() {
    TinyShape shape;
    shape.dim = 256;
    shape.ffn_dim = 512;
    shape.body = Type::kQ4_K;
    shape.down = Type::kQ6_K;
    shape.embedding = Type::kQ8_0;
    shape.tied = true;
    return shape;
}

// A row of ffn_down takes 16 KiB, four Extents and more at the smallest budget: one worker has to hold five.
TinyShape long_rows() {
    TinyShape shape;
    shape.n_layers = 1;
    shape.ffn_dim = 4096;
    return shape;
}

// Experts of 64 KiB a matrix, of which a token uses two of sixteen. A slot takes 216 KiB, and the smallest budget has two or
// three of them.
TinyShape with_experts() {
    TinyShape shape;
    shape.architecture = "qwen2moe";
    shape.n_layers = 3;
    shape.n_experts = 16;
    shape.expert_ffn_dim = 256;
    shape.shared_ffn_dim = 64;
    return shape;
}

TEST(PagedForward, SameBitsWithExperts) {
    WEIR_NEEDS_UFFD();
    expect_same_bits(PagingMode::kUffd, with_experts(), {800 << 10, 2 << 20, 16 << 20});
}

TEST(PagedForward, ABudgetWithoutRoomForTwoExpertsIsRefused) {
    WEIR_NEEDS_UFFD();
    const TinyModelFile file(with_experts());
    EngineOptions options;
    options.paging = PagingMode::kUffd;
    options.frame_bytes = 256 << 10;
    EXPECT_THROW(Engine(file.path(), options), UsageError);
}

// Frames come and go while experts are computed: the same bits, and in the end no more memory than the last budget.
TEST(PagedForward, SameBitsWithExpertsWhileTheBudgetChanges) {
    WEIR_NEEDS_UFFD();
    const TinyModelFile file(with_experts());
    const auto ids = some_ids(14);
    EngineOptions options;
    options.paging = PagingMode::kResident;
    const auto expected = Engine(file.path(), options).logits(ids, 1);
    options.paging = PagingMode::kUffd;
    options.frame_bytes = 12 << 20;
    options.threads = 2;
    Engine engine(file.path(), options);
    std::mt19937 random(4);
    for (int round = 0; round < 6; ++round) {
        engine.cache->set_length(0);
        for (size_t i = 0; i < ids.size(); ++i) {
            engine.store->set_frame_bytes((1 << 20) + random() % (11 << 20));
            const auto row = engine.forward->pass({&ids[i], 1}, 1, i + 1 < ids.size());
            ASSERT_EQ(0, std::memcmp(&expected[i * row.size()], row.data(), row.size() * sizeof(float))) << i;
        }
    }
}

TEST(AdvisedForward, SameBitsWithExperts) {
    expect_same_bits(PagingMode::kAdvised, with_experts(), {128 << 10, 1 << 20, 16 << 20});
}

// What routers did not choose is not read: what is read is what was absent when it was chosen, and what predictions cost.
TEST(PagedForward, ExpertsThatNobodyChoseAreNotRead) {
    WEIR_NEEDS_UFFD();
    const TinyShape shape = with_experts();
    const TinyModelFile file(shape);
    const uint64_t experts = shape.n_layers * shape.n_experts * 3 * shape.expert_ffn_dim * shape.dim * sizeof(float);
    const auto ids = some_ids(12);
    EngineOptions options;
    options.paging = PagingMode::kUffd;
    options.threads = 2;
    options.frame_bytes = 3 << 20;  // twelve slots
    Engine engine(file.path(), options);
    engine.logits(ids, 1);
    engine.logits(ids, 1);
    const StoreStats stats = engine.store->stats();
    const uint64_t dense = stats.weights_bytes - experts;
    EXPECT_EQ(stats.experts.uses, 2 * ids.size() * shape.n_layers * 2);
    EXPECT_GT(stats.experts.here, 0u);
    EXPECT_GT(stats.experts.absent_bytes, experts / 8);
    EXPECT_LE(stats.bytes_read, stats.experts.absent_bytes * 23 / 20 + dense * 2 + (1 << 20));
    EXPECT_LE(stats.experts.read_amplification, 1.13);  // slices of 64 KiB: a page at either end
    EXPECT_LT(stats.pass_bytes, experts / 2);
}

// The map is of the whole walk, and can be looked at while passes go on.
void expect_a_map(PagingMode mode, const TinyShape& shape, uint64_t budget, const char* letters) {
    const TinyModelFile file(shape);
    EngineOptions options;
    options.paging = mode;
    options.frame_bytes = budget;
    options.threads = 2;
    Engine engine(file.path(), options);
    const size_t units = engine.store->look().units.size();
    std::vector<bool> covered(units);
    uint64_t bytes = 0;
    for (const MapCell& cell : engine.store->map_cells()) {
        EXPECT_GT(cell.weights, 0u);
        bytes += cell.bytes;
        for (size_t unit = cell.first_unit; unit < cell.first_unit + cell.units; ++unit) covered.at(unit) = true;
    }
    EXPECT_EQ(std::count(covered.begin(), covered.end(), true), static_cast<ptrdiff_t>(units));
    EXPECT_EQ(bytes, engine.store->stats().weights_bytes);
    std::atomic<bool> done{false};
    std::atomic<size_t> looks{0}, wrong{0};
    std::thread looker([&] {
        for (; !done; ++looks) {
            const StoreView view = engine.store->look();
            if (view.units.size() != units || view.units.find_first_not_of(letters) != std::string::npos) ++wrong;
        }
    });
    while (looks == 0) std::this_thread::yield();
    engine.logits(some_ids(14), 1);
    done = true;
    looker.join();
    EXPECT_EQ(wrong, 0u);
    // Nobody stalls any more; what was to be read ahead may still be on its way.
    const uint64_t before = engine.store->stats().bytes_read;
    const StoreView view = engine.store->look();
    const StoreStats stats = engine.store->stats();
    EXPECT_EQ(view.stall_us, stats.stall_us);
    EXPECT_LE(before, view.bytes_read);
    EXPECT_LE(view.bytes_read, stats.bytes_read);
    if (!pages_by_budget(mode)) return;
    EXPECT_NE(view.units.find('R'), std::string::npos);
    EXPECT_NE(view.units.find('.'), std::string::npos);
    const auto here = view.units.size() - static_cast<size_t>(std::count(view.units.begin(), view.units.end(), '.'));
    if (stats.experts.slots == 0) {
        EXPECT_LE(here * stats.extent_bytes, view.frame_bytes);
    }
}

TEST(PagedForward, HasAMap) {
    WEIR_NEEDS_UFFD();
    expect_a_map(PagingMode::kUffd, paged_shape(), 10u << 20, ".rsR");
}
TEST(PagedForward, HasAMapOfExperts) {
    WEIR_NEEDS_UFFD();
    expect_a_map(PagingMode::kUffd, with_experts(), 2u << 20, ".rsR");
}
TEST(AdvisedForward, HasAMap) { expect_a_map(PagingMode::kAdvised, paged_shape(), 10u << 20, ".sR"); }
TEST(ResidentForward, HasAMap) { expect_a_map(PagingMode::kResident, paged_shape(), 0, "R"); }
TEST(MappedForward, HasAMap) { expect_a_map(PagingMode::kMmap, paged_shape(), 0, "k"); }

TEST(PagedForward, SameBitsAtEveryBudget) {
    WEIR_NEEDS_UFFD();
    expect_same_bits(PagingMode::kUffd, six_layers(), {64 << 10, 128 << 10, 300 << 10, 4 << 20});
}

TEST(PagedForward, SameBitsWithATiedHeadAndMixedTypes) {
    WEIR_NEEDS_UFFD();
    expect_same_bits(PagingMode::kUffd, tied_and_mixed(), {64 << 10, 200 << 10, 1 << 20});
}

TEST(PagedForward, RowsLongerThanAnExtent) {
    WEIR_NEEDS_UFFD();
    const TinyShape shape = long_rows();
    expect_same_bits(PagingMode::kUffd, shape, {56 << 10, 300 << 10});

    // Too few frames for that are refused, where two workers would wait for each other for ever.
    const TinyModelFile file(shape);
    EngineOptions options;
    options.paging = PagingMode::kUffd;
    options.frame_bytes = 40 << 10;
    options.threads = 2;
    EXPECT_THROW(Engine(file.path(), options), UsageError);
}

TEST(AdvisedForward, SameBitsAtEveryBudget) {
    expect_same_bits(PagingMode::kAdvised, six_layers(), {64 << 10, 128 << 10, 300 << 10, 4 << 20});
}

TEST(AdvisedForward, SameBitsWithATiedHeadAndMixedTypes) {
    expect_same_bits(PagingMode::kAdvised, tied_and_mixed(), {64 << 10, 200 << 10, 1 << 20});
}

TEST(AdvisedForward, RowsLongerThanAnExtent) {
    expect_same_bits(PagingMode::kAdvised, long_rows(), {40 << 10, 300 << 10});
    const TinyModelFile file(long_rows());
    EngineOptions options;
    options.paging = PagingMode::kAdvised;
    options.frame_bytes = 20 << 10;
    EXPECT_THROW(Engine(file.path(), options), UsageError);
}

// No more of the file is in memory than the frames allow, however its matrices share pages. A fault also maps what lies
// around it and is in the page cache already: the norms, read at the start.
TEST(AdvisedForward, KeepsToItsFrames) {
    const TinyModelFile file(six_layers());
    for (const uint64_t budget : {160 << 10, 300 << 10}) {
        drop_cache(file.path());
        EngineOptions options;
        options.paging = PagingMode::kAdvised;
        options.frame_bytes = budget;
        Engine engine(file.path(), options);
        engine.logits(some_ids(8), 1);
        EXPECT_LE(mapped_pages_of(file.path()), budget + (48 << 10));
    }
}

// A model in several files is the model: the same bits by every way of paging, with matrices and embedding in any of them.
void expect_parts_alike(PagingMode mode) {
    for (const bool tied : {true, false}) {
        TinyShape shape = tied ? tied_and_mixed() : six_layers();
        const TinyModelFile whole(shape);
        const auto ids = some_ids(11);
        EngineOptions options;
        options.paging = PagingMode::kResident;
        const auto expected = Engine(whole.path(), options).logits(ids, 5);
        options.paging = mode;
        options.threads = 2;
        for (const size_t parts : {2, 7}) {
            shape.parts = parts;
            const TinyModelFile split(shape);
            for (const uint64_t budget : {96 << 10, 4 << 20}) {
                options.frame_bytes = budget;
                for (const std::string& path : {split.paths().front(), split.paths().back()}) {
                    Engine engine(path, options);
                    ASSERT_EQ(engine.file.parts().size(), parts);
                    ASSERT_EQ(expected, engine.logits(ids, 3)) << parts << " parts, " << budget << " bytes of frames";
                }
            }
        }
    }
}

TEST(PagedForward, PartsGiveTheSameBits) {
    WEIR_NEEDS_UFFD();
    expect_parts_alike(PagingMode::kUffd);
}

TEST(AdvisedForward, PartsGiveTheSameBits) { expect_parts_alike(PagingMode::kAdvised); }

TEST(MappedForward, PartsGiveTheSameBits) { expect_parts_alike(PagingMode::kMmap); }

TEST(ResidentForward, PartsGiveTheSameBits) { expect_parts_alike(PagingMode::kResident); }

TEST(ResidentForward, APartThatChangesIsNamed) {
    TinyShape shape = six_layers();
    shape.parts = 3;
    const TinyModelFile file(shape);
    EngineOptions options;
    options.paging = PagingMode::kResident;
    Engine engine(file.path(), options);
    const auto ids = some_ids(2);
    engine.logits(ids, 1);
    std::ofstream(file.paths()[1], std::ios::app) << "more";
    try {
        engine.logits(ids, 1);
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(file.paths()[1] + ": the file changed"), std::string::npos) << e.what();
    }
}

// The file loses its end while it is in use: the run ends with an error that says so, and nobody hangs.
void expect_an_error_from_a_file_that_shrinks(PagingMode mode) {
    for (const size_t threads : {1, 2}) {
        TinyShape shape = six_layers();
        shape.parts = threads;  // the last of two, with two threads
        const TinyModelFile file(shape);
        EngineOptions options;
        options.paging = mode;
        options.frame_bytes = 96 << 10;
        options.threads = threads;
        Engine engine(file.path(), options);
        const auto ids = some_ids(4);
        engine.logits(ids, 1);
        const std::string& last = file.paths().back();
        std::filesystem::resize_file(last, std::filesystem::file_size(last) / 2);
        EXPECT_THROW(engine.logits(ids, 1), Error);
    }
}

TEST(PagedForward, AFileThatShrinksIsAnError) {
    WEIR_NEEDS_UFFD();
    expect_an_error_from_a_file_that_shrinks(PagingMode::kUffd);
}

TEST(AdvisedForward, AFileThatShrinksIsAnError) { expect_an_error_from_a_file_that_shrinks(PagingMode::kAdvised); }

}  // namespace
}  // namespace weir::test
