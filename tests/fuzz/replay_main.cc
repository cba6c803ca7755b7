// Replays a fuzz target's seed corpus without libFuzzer, so that every compiler and sanitizer build runs it:
// each file as it is, cut short, and with single bytes changed.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// A copy of exactly this size, so that reading past the end is seen by the address sanitizer.
void run(const std::vector<uint8_t>& bytes) {
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void replay(const std::vector<uint8_t>& seed) {
    constexpr size_t kVariants = 256;
    run(seed);
    const size_t step = 1 + seed.size() / kVariants;
    for (size_t n = 0; n < seed.size(); n += step)
        run({seed.begin(), seed.begin() + static_cast<ptrdiff_t>(n)});
    for (size_t at = 0; at < seed.size(); at += step) {
        std::vector<uint8_t> changed = seed;
        changed[at] = static_cast<uint8_t>(changed[at] ^ (0x01u << at % 8));
        run(changed);
    }
}

}  // namespace

int main(int argc, char** argv) {
    size_t files = 0;
    for (int i = 1; i < argc; ++i) {
        for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
            std::ifstream in(entry.path(), std::ios::binary);
            const std::vector<uint8_t> seed{std::istreambuf_iterator<char>(in),
                                            std::istreambuf_iterator<char>()};
            if (!in) {
                std::fprintf(stderr, "cannot read %s\n", entry.path().c_str());
                return 1;
            }
            replay(seed);
            ++files;
        }
    }
    std::printf("%zu corpus files\n", files);
    return files > 0 ? 0 : 1;
}
