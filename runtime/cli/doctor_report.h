// What `weir doctor` finds: one line for each thing that a run depends on, with a verdict and, where there is one, the
// mend. Made by doctor_system.cc and doctor_file.cc, written by doctor_report.cc for people and for machines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace weir {

enum class Verdict : uint8_t {
    kOk,
    kSlower,        // runs work, but not as well as they could
    kNotAvailable,  // this rung or feature is not to be had; others may stand in for it
};

const char* verdict_name(Verdict verdict);

using FindingValue = std::variant<bool, uint64_t, double, std::string, std::vector<std::string>>;

struct Finding {
    std::string check;   // "userfaultfd: device"
    Verdict verdict = Verdict::kOk;
    std::string found;   // what is there, in a few words
    std::string mend;    // what to do about it; empty where nothing is wrong, or nothing can be done
    bool needed = false; // every run needs it
    std::vector<std::pair<std::string, FindingValue>> values;  // figures for machines
};

using Findings = std::vector<Finding>;
// Says what is being looked at, where somebody waits for it.
using DoctorProgress = std::function<void(const std::string&)>;

// Where /proc and /sys lie is a folder that tests can give. What is probed on scratch pages is always this machine's.
Findings examine_kernel(const std::filesystem::path& root);
Findings examine_rungs();
Findings examine_memory(const std::filesystem::path& root);
Findings examine_processor(const std::filesystem::path& root, const char* forced_kernels);
// Reads some of the file: its file system, direct reads, the device below. Throws Error where it cannot be opened.
Findings examine_file(const std::string& path, const DoctorProgress& progress);

std::string doctor_text(const Findings& findings);
std::string doctor_json(const Findings& findings);

}  // namespace weir
