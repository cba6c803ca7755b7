// What `weir doctor` makes of machines that are made up in a folder, and of files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/cli/doctor_report.h"
#include "runtime/error.h"
#include "tests/fake_root.h"

namespace weir {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const Finding& find(const Findings& findings, const std::string& check) {
    const auto it = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.check == check; });
    if (it == findings.end()) throw std::runtime_error("no finding " + check);
    return *it;
}

size_t count(const Findings& findings, const std::string& check) {
    return static_cast<size_t>(
        std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.check == check; }));
}

void quiet(const std::string&) {}

class Doctor : public ::testing::Test {
  protected:
    void SetUp() override {
        root_.put("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n");
        root_.put("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n");
        root_.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        root_.put("sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise [madvise] never\n");
        root_.put("sys/devices/system/node/online", "0\n");
    }
    Findings kernel() const { return examine_kernel(root_.path()); }
    Findings memory() const { return examine_memory(root_.path()); }
    test::FakeRoot root_;
};

TEST_F(Doctor, AGoodMachineHasNothingToMend) {
    for (const Findings& findings : {kernel(), memory()}) {
        for (const Finding& f : findings) {
            if (f.check == "memory pressure") continue;
            EXPECT_EQ(f.verdict, Verdict::kOk) << f.check << ": " << f.found;
            EXPECT_THAT(f.mend, IsEmpty()) << f.check;
            EXPECT_THAT(f.found, Not(IsEmpty())) << f.check;
        }
    }
    EXPECT_EQ(find(memory(), "memory pressure").verdict, Verdict::kNotAvailable);
}

TEST_F(Doctor, HugePagesThatAreSwitchedOff) {
    root_.put("sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise madvise [never]\n");
    EXPECT_EQ(find(kernel(), "transparent huge pages").verdict, Verdict::kSlower);
    EXPECT_THAT(find(kernel(), "transparent huge pages").mend, HasSubstr("defrag"));
    root_.put("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    EXPECT_THAT(find(kernel(), "transparent huge pages").mend, HasSubstr("echo madvise"));
    root_.remove("sys/kernel/mm/transparent_hugepage");
    EXPECT_EQ(find(kernel(), "huge page").verdict, Verdict::kNotAvailable);
    EXPECT_EQ(find(kernel(), "transparent huge pages").verdict, Verdict::kSlower);
}

TEST_F(Doctor, OtherPmdSizesAreShown) {
    root_.put("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "536870912\n");
    EXPECT_THAT(find(kernel(), "huge page").found, HasSubstr("512.0 MiB"));
}

TEST_F(Doctor, CgroupsAtEveryLevel) {
    EXPECT_THAT(find(memory(), "cgroup limit").found, HasSubstr("none"));
    root_.put("proc/self/cgroup", "0::/system.slice/weir.service\n");
    root_.put("sys/fs/cgroup/system.slice/weir.service/memory.max", "2147483648\n");
    root_.put("sys/fs/cgroup/system.slice/weir.service/memory.high", "1073741824\n");
    root_.put("sys/fs/cgroup/system.slice/weir.service/memory.current", "1000000000\n");
    root_.put("sys/fs/cgroup/system.slice/memory.max", "4294967296\n");
    const Findings findings = memory();
    EXPECT_EQ(count(findings, "cgroup level"), 2u);
    EXPECT_THAT(find(findings, "cgroup limit").found, HasSubstr("1.00 GiB"));
    EXPECT_EQ(find(findings, "cgroup level").verdict, Verdict::kSlower);  // close to memory.high
    EXPECT_THAT(find(findings, "cgroup level").found, HasSubstr("max 2.00 GiB, high 1.00 GiB"));
}

TEST_F(Doctor, SwapPressureAndNodes) {
    root_.put("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\nSwapTotal: 1000 kB\nSwapFree: 1000 kB\n");
    root_.put("proc/sys/vm/swappiness", "60\n");
    EXPECT_EQ(find(memory(), "swap").verdict, Verdict::kSlower);
    EXPECT_THAT(find(memory(), "swap").mend, HasSubstr("MemorySwapMax=0"));
    root_.put("proc/pressure/memory", "some avg10=0.00 avg60=0 avg300=0 total=0\nfull avg10=0.00 avg60=0 avg300=0 total=0\n");
    EXPECT_EQ(find(memory(), "memory pressure").verdict, Verdict::kOk);
    root_.put("proc/pressure/memory", "some avg10=60.00 avg60=0 avg300=0 total=0\nfull avg10=40.00 avg60=0 avg300=0 total=0\n");
    EXPECT_EQ(find(memory(), "memory pressure").verdict, Verdict::kSlower);
    EXPECT_THAT(find(memory(), "memory nodes").found, HasSubstr("one"));
    root_.put("sys/devices/system/node/online", "0-1\n");
    for (const char* node : {"0", "1"}) {
        const std::string folder = std::string("sys/devices/system/node/node") + node + "/";
        root_.put(folder + "cpulist", "0-63\n");
        root_.put(folder + "meminfo", std::string("Node ") + node + " MemTotal: 100 kB\n");
    }
    EXPECT_THAT(find(memory(), "memory nodes").found, HasSubstr("2: frames are spread"));
}

TEST_F(Doctor, WhatEveryRunNeedsIsMarked) {
    root_.put("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 20000 kB\n");
    EXPECT_TRUE(find(memory(), "memory").needed);
    EXPECT_EQ(find(memory(), "memory").verdict, Verdict::kNotAvailable);
    root_.remove("proc/meminfo");
    EXPECT_EQ(find(memory(), "memory").verdict, Verdict::kNotAvailable);
    EXPECT_THAT(find(memory(), "memory").mend, HasSubstr("mount"));
    const Findings processor = examine_processor(root_.path(), "no-such-set");
    EXPECT_EQ(find(processor, "kernels").verdict, Verdict::kNotAvailable);
    EXPECT_TRUE(find(processor, "kernels").needed);
}

TEST_F(Doctor, Processors) {
    root_.put("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 fma f16c avx512f\n\nprocessor\t: 1\n");
    const Finding x86 = find(examine_processor(root_.path(), nullptr), "processor");
    EXPECT_THAT(x86.found, HasSubstr("Some CPU"));
    EXPECT_THAT(x86.found, HasSubstr("avx2 fma f16c avx512f"));
    root_.put("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\n");
    EXPECT_THAT(find(examine_processor(root_.path(), nullptr), "processor").found, HasSubstr("asimd asimddp i8mm"));
    EXPECT_EQ(find(examine_processor(root_.path(), "scalar"), "kernels").verdict, Verdict::kSlower);
}

TEST_F(Doctor, AFileAndItsDevice) {
    const std::string path = root_.path() / "file";
    std::ofstream(path) << std::string(3 << 20, 'x');
    const Findings findings = examine_file(path, quiet);
    ASSERT_EQ(findings.size(), 5u);
    EXPECT_THAT(find(findings, "file").found, HasSubstr("3.00 MiB"));
    EXPECT_THAT(find(findings, "device: sequential").found, HasSubstr("GB/s"));
    EXPECT_THAT(find(findings, "device: in a run").found, HasSubstr("never touched"));
    EXPECT_THAT(find(findings, "device: one small read").found, HasSubstr("p99"));
    std::ofstream(path, std::ios::trunc).flush();
    EXPECT_EQ(examine_file(path, quiet).size(), 2u);
    EXPECT_THROW(examine_file(root_.path(), quiet), Error);
    EXPECT_THROW(examine_file(root_.path() / "absent", quiet), Error);
}

TEST_F(Doctor, TextAndJsonSayTheSame) {
    Findings findings = memory();
    findings[0].found += " \x1b[31m";  // whatever a path may hold
    const std::string text = doctor_text(findings);
    const auto json = nlohmann::json::parse(doctor_json(findings));
    EXPECT_THAT(text, Not(HasSubstr("\x1b")));
    ASSERT_EQ(json["checks"].size(), findings.size());
    for (size_t i = 0; i < findings.size(); ++i) {
        EXPECT_EQ(json["checks"][i]["check"], findings[i].check);
        EXPECT_EQ(json["checks"][i]["verdict"], verdict_name(findings[i].verdict));
        EXPECT_EQ(json["checks"][i]["mend"].is_null(), findings[i].mend.empty());
        EXPECT_THAT(text, HasSubstr(findings[i].check));
        if (!findings[i].mend.empty()) {
            EXPECT_THAT(text, HasSubstr("-> " + findings[i].mend));
        }
    }
    EXPECT_EQ(json["ok"].get<size_t>() + json["slower"].get<size_t>() + json["not_available"].get<size_t>(), findings.size());
}

}  // namespace
}  // namespace weir
