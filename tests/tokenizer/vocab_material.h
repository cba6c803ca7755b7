// Vocabularies that are not in the repository, loaded once per program, and the texts that go with them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer.h"
#include "tests/material.h"

namespace weir::test {

// Files that scripts/fetch_model.sh leaves in the cache folder.
inline std::filesystem::path cached_file(const char* name) {
    const char* cache = std::getenv("WEIR_CACHE");
    const char* home = std::getenv("HOME");
    const std::filesystem::path folder =
        cache && *cache ? std::filesystem::path(cache) : std::filesystem::path(home ? home : ".") / ".cache/weir";
    return folder / name;
}
inline std::filesystem::path smollm2_file() { return cached_file("SmolLM2-135M-Instruct.Q4_1.gguf"); }

// The tokenizer of a file that is there.
inline const Tokenizer& load_tokenizer(const std::filesystem::path& path) {
    static std::map<std::filesystem::path, std::unique_ptr<Tokenizer>> loaded;
    std::unique_ptr<Tokenizer>& tokenizer = loaded[path];
    if (!tokenizer) tokenizer = Tokenizer::from_gguf(GgufFile::open(path.string()));
    return *tokenizer;
}

inline std::string read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file) << path;
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

struct VocabCase {
    std::string text;
    std::vector<TokenId> ids;
};

// Texts of an .inp file with the ids of the .out file of the same stem.
inline std::vector<VocabCase> read_vocab_cases(const std::filesystem::path& inp, const std::filesystem::path& out) {
    const std::string separator = "\n__ggml_vocab_test__\n";
    const std::string texts = read_file(inp);
    std::istringstream lines(read_file(out));
    std::vector<VocabCase> cases;
    for (size_t at = 0; at < texts.size();) {
        size_t end = texts.find(separator, at);
        if (end == std::string::npos) end = texts.size();
        VocabCase& added = cases.emplace_back(VocabCase{texts.substr(at, end - at), {}});
        std::string line;
        EXPECT_TRUE(std::getline(lines, line)) << out << " has fewer lines than " << inp << " has texts";
        std::istringstream numbers(line);
        for (TokenId id; numbers >> id;) added.ids.push_back(id);
        at = end + separator.size();
    }
    return cases;
}

}  // namespace weir::test
