// Test material that is not in the repository: models and vocabularies in a folder beside the checkout, or
// where the environment variable WEIR_SHARED points. Who cloned the project has none: tests on it skip and
// say so. Where WEIR_REQUIRE_MATERIAL=1 is set, as in CI, its absence is a failure.
//
//     const auto path = weir::test::shared_file("models/stories260K-F32.gguf");
//     if (!weir::test::require_material(path)) return;
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#ifndef WEIR_SHARED_DEFAULT
#define WEIR_SHARED_DEFAULT "../shared"
#endif

namespace weir::test {

inline std::filesystem::path shared_file(const std::string& relative) {
    const char* root = std::getenv("WEIR_SHARED");
    return std::filesystem::path(root != nullptr && *root != '\0' ? root : WEIR_SHARED_DEFAULT) / relative;
}

namespace internal {

// GTEST_SKIP and FAIL return from the function that they stand in, which must return nothing.
inline void report_absent(const std::filesystem::path& path) {
    const char* required = std::getenv("WEIR_REQUIRE_MATERIAL");
    if (required != nullptr && std::string_view(required) == "1") {
        FAIL() << "test material is absent: " << path << " (WEIR_REQUIRE_MATERIAL=1)";
    }
    GTEST_SKIP() << "test material is absent: " << path << "; set WEIR_SHARED to the folder that holds it";
}

}  // namespace internal

// Whether the file is there; where it is not, the running test is marked as skipped (or failed) and should
// return.
inline bool require_material(const std::filesystem::path& path) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) return true;
    internal::report_absent(path);
    return false;
}

}  // namespace weir::test
