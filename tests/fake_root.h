// A folder that stands for / in tests of what /proc and /sys say.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace weir::test {

class FakeRoot {
  public:
    FakeRoot() {
        std::string name = (std::filesystem::temp_directory_path() / "weir-root-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
        path_ = name;
    }
    ~FakeRoot() { std::filesystem::remove_all(path_); }
    FakeRoot(const FakeRoot&) = delete;
    FakeRoot& operator=(const FakeRoot&) = delete;

    // A reader sees the old text or the new one, as with the kernel's files.
    void put(const std::string& path, const std::string& text) const {
        std::filesystem::create_directories((path_ / path).parent_path());
        std::ofstream(path_ / (path + ".new")) << text;
        std::filesystem::rename(path_ / (path + ".new"), path_ / path);
    }
    void remove(const std::string& path) const { std::filesystem::remove_all(path_ / path); }
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

}  // namespace weir::test
