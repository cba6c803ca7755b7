// Writes the seed corpus of native_fuzz into a folder: make_native_corpus tests/fuzz/corpus/native
#include <cstdio>
#include <filesystem>
#include <string>

#include "tests/model/native_fixture.h"

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: make_native_corpus FOLDER\n");
        return 2;
    }
    std::filesystem::create_directories(argv[1]);
    // The head is all that is read.
    const auto write = [&](const std::string& name, const weir::test::SmallModel& model) {
        const weir::test::NativeFixture made(model);
        const std::vector<std::byte> bytes = weir::test::bytes_of(made.path);
        weir::test::write_bytes(std::filesystem::path(argv[1]) / name, std::span(bytes).first(weir::test::stated_head(bytes)));
    };
    weir::test::SmallModel model = weir::test::planed_model();
    write("llama", model);
    model.tied = true;
    write("llama-tied", model);
    model.experts = 2;
    write("llama-experts", model);
    model = weir::test::planed_model();
    model.ffn = 40;
    write("llama-kept", model);
    return 0;
}
