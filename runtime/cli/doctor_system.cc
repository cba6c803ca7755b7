// What /proc and /sys say: kernel, pages, memory and its limits, processor.
#include <sys/prctl.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "kernels/kernels.h"
#include "pager/memory_nodes.h"
#include "pager/system.h"
#include "runtime/cli/doctor_report.h"
#include "runtime/cli/format.h"
#include "runtime/engine/memory_limits.h"
#include "runtime/engine/team.h"
#include "runtime/error.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

// Less than that for a whole process is no budget for any model.
constexpr uint64_t kLeastMemory = 32u << 20;

// The pager's functions put their path behind it as it is.
std::string prefix(const fs::path& root) { return root == "/" ? "" : root.string(); }

std::string read_line(const fs::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// "madvise" of "always [madvise] never"; the whole line where nothing is in brackets.
std::string chosen(const std::string& line) {
    const size_t begin = line.find('['), end = line.find(']');
    if (begin == std::string::npos || end == std::string::npos || end < begin) return line;
    return line.substr(begin + 1, end - begin - 1);
}

Finding kernel_finding() {
    Finding f;
    f.check = "kernel";
    struct utsname name = {};
    if (::uname(&name) != 0) {
        f.verdict = Verdict::kNotAvailable;
        f.found = "uname fails";
        return f;
    }
    f.found = std::string(name.sysname) + " " + name.release + " " + name.machine;
    f.values = {{"release", std::string(name.release)}, {"machine", std::string(name.machine)}};
    return f;
}

Finding page_finding() {
    Finding f;
    f.check = "page";
    f.found = format_bytes(pager::page_size());
    if (pager::page_size() != pager::kernel_page_size())
        f.found += " by WEIR_PAGE_SIZE, the kernel's is " + format_bytes(pager::kernel_page_size());
    f.values = {{"bytes", uint64_t{pager::page_size()}}, {"kernel_bytes", uint64_t{pager::kernel_page_size()}}};
    return f;
}

Finding pmd_finding(const fs::path& root) {
    const size_t pmd = pager::pmd_page_size(prefix(root).c_str());
    Finding f;
    f.check = "huge page";
    f.values.emplace_back("bytes", uint64_t{pmd});
    if (pmd > pager::page_size()) {
        f.found = format_bytes(pmd) + " (PMD)";
        return f;
    }
    f.verdict = Verdict::kNotAvailable;
    f.found = "the kernel has no transparent huge pages";
    f.mend = "a kernel with CONFIG_TRANSPARENT_HUGEPAGE; without, weights are moved page by page";
    return f;
}

Finding thp_finding(const fs::path& root) {
    const fs::path folder = root / "sys/kernel/mm/transparent_hugepage";
    const std::string enabled = chosen(read_line(folder / "enabled"));
    const std::string defrag = chosen(read_line(folder / "defrag"));
    Finding f;
    f.check = "transparent huge pages";
    f.values = {{"enabled", enabled}, {"defrag", defrag}};
    f.found = "enabled=" + (enabled.empty() ? "(none)" : enabled) + " defrag=" + (defrag.empty() ? "(none)" : defrag);
    if (!pager::huge_pages_allowed(prefix(root).c_str())) {
        f.verdict = Verdict::kSlower;
        f.mend = enabled.empty() ? "see huge page" : "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, and inherit > the same of the huge page's size";
    } else if (::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) {
        f.verdict = Verdict::kSlower;
        f.found += ", but switched off for this process";
        f.mend = "whoever starts us calls prctl(PR_SET_THP_DISABLE): take that away";
    } else if (defrag == "never" || defrag == "defer") {
        f.verdict = Verdict::kSlower;
        f.mend = "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag: else frames stay small on fragmented memory";
    }
    return f;
}

std::string limit_text(uint64_t bytes) { return bytes == UINT64_MAX ? "none" : format_bytes(bytes); }

void add_limits(Findings* findings, const MemoryLimits& limits) {
    Finding memory;
    memory.check = "memory";
    memory.needed = true;
    memory.found = format_bytes(limits.available) + " available of " + format_bytes(limits.total) + "; --ram by default " +
                   format_bytes(limits.sensible());
    memory.values = {{"total", limits.total}, {"available", limits.available}, {"default_budget", limits.sensible()}};
    if (limits.sensible() < kLeastMemory) {
        memory.verdict = Verdict::kNotAvailable;
        memory.mend = "end other programs, or raise the cgroup's limit: no model runs in that";
    }
    findings->push_back(std::move(memory));

    Finding all;
    all.check = "cgroup limit";
    all.found = "none";
    if (limits.cgroup != UINT64_MAX) {
        all.found = format_bytes(limits.cgroup) + " by " + limits.cgroup_name;
    } else if (!limits.levels.empty()) {
        all.found += ", looked at " + std::to_string(limits.levels.size()) + (limits.levels.size() == 1 ? " level" : " levels");
    }
    if (limits.cgroup != UINT64_MAX) all.values = {{"bytes", limits.cgroup}, {"group", limits.cgroup_name}};
    findings->push_back(std::move(all));
    for (const CgroupLevel& level : limits.levels) {
        if (level.limit == UINT64_MAX && level.high == UINT64_MAX) continue;
        Finding f;
        f.check = "cgroup level";
        f.found = level.folder + (level.v1 ? " (v1): limit " : " (v2): max ") + limit_text(level.limit);
        if (!level.v1) f.found += ", high " + limit_text(level.high);
        f.found += ", in use " + format_bytes(level.usage);
        f.values = {{"folder", level.folder}, {"v1", level.v1}, {"usage", level.usage}};
        if (level.limit != UINT64_MAX) f.values.emplace_back("limit", level.limit);
        if (level.high != UINT64_MAX) f.values.emplace_back("high", level.high);
        if (level.high < level.limit && level.usage > level.high - level.high / 10) {
            f.verdict = Verdict::kSlower;
            f.mend = "the group is near memory.high, from where the kernel slows it down: raise it, or end what else runs in the group";
        }
        findings->push_back(std::move(f));
    }
}

Finding pressure_finding(const fs::path& root) {
    const PressureState pressure = read_pressure(root);
    Finding f;
    f.check = "memory pressure";
    f.values = {{"machine", pressure.machine}, {"cgroup_file", pressure.cgroup_file}};
    if (!pressure.machine && pressure.cgroup_file.empty()) {
        f.verdict = Verdict::kNotAvailable;
        f.found = "no pressure stall information: memory is watched by the usage of the cgroup and the machine instead";
        f.mend = "boot with psi=1, on a kernel with CONFIG_PSI";
        return f;
    }
    f.found = "some " + format_fixed(pressure.some, 2) + " %, full " + format_fixed(pressure.full, 2) + " % of the last ten seconds";
    f.found += pressure.cgroup_file.empty() ? ", of the machine" : "; of our own group by " + pressure.cgroup_file;
    f.values.emplace_back("some_avg10", pressure.some);
    f.values.emplace_back("full_avg10", pressure.full);
    // A tenth of the time spent waiting for memory is a machine that others have filled.
    if (pressure.full >= 10) {
        f.verdict = Verdict::kSlower;
        f.mend = "the machine is short of memory now: end other programs, or give a smaller --ram";
    }
    return f;
}

Finding swap_finding(const fs::path& root) {
    const SwapState swap = read_swap(root);
    Finding f;
    f.check = "swap";
    f.values = {{"total", swap.total}, {"free", swap.free}};
    if (swap.total == 0) {
        f.found = "none: a budget is memory";
        return f;
    }
    f.verdict = Verdict::kSlower;
    f.found = format_bytes(swap.free) + " free of " + format_bytes(swap.total) + ", swappiness " + std::to_string(swap.swappiness) +
              ": weights that are kept in memory may be swapped out";
    f.mend = "MemorySwapMax=0 for the unit (memory.swap.max), or swapoff -a";
    return f;
}

Finding numa_finding(const fs::path& root) {
    const std::vector<pager::NumaNode> nodes = pager::numa_nodes(prefix(root).c_str());
    const std::vector<unsigned> chosen_nodes = pager::nodes_for_frames(nodes, pager::own_cpus());
    Finding f;
    f.check = "memory nodes";
    f.values = {{"nodes", uint64_t{nodes.size()}}, {"frames_on", uint64_t{chosen_nodes.size()}}};
    f.found = nodes.size() < 2 ? "one: nothing to place"
                               : std::to_string(nodes.size()) + ": frames are spread over those of this process's processors:";
    for (const unsigned id : chosen_nodes) f.found.append(" ").append(std::to_string(id));
    return f;
}

}  // namespace

Findings examine_kernel(const fs::path& root) {
    Findings findings;
    findings.push_back(kernel_finding());
    findings.push_back(page_finding());
    findings.push_back(pmd_finding(root));
    findings.push_back(thp_finding(root));
    return findings;
}

Findings examine_memory(const fs::path& root) {
    Findings findings;
    try {
        add_limits(&findings, read_memory_limits(root));
    } catch (const Error& error) {
        Finding f;
        f.check = "memory";
        f.verdict = Verdict::kNotAvailable;
        f.found = error.what();
        f.mend = "mount -t proc proc /proc";
        f.needed = true;
        findings.push_back(std::move(f));
    }
    findings.push_back(pressure_finding(root));
    findings.push_back(swap_finding(root));
    findings.push_back(numa_finding(root));
    return findings;
}

Findings examine_processor(const fs::path& root, const char* forced_kernels) {
    // "flags : fpu vme ..." on x86, "Features : fp asimd ..." on ARM.
    static constexpr const char* kTold[] = {"avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "asimd", "asimddp", "i8mm", "sve"};
    std::ifstream cpuinfo(root / "proc/cpuinfo");
    std::string line, model;
    std::vector<std::string> all;
    while (all.empty() && std::getline(cpuinfo, line)) {
        const size_t colon = line.find(':');
        if (colon == std::string::npos) continue;
        std::istringstream words(line.substr(colon + 1));
        if (line.rfind("model name", 0) == 0) model = line.substr(std::min(colon + 2, line.size()));
        if (line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0)
            all.assign(std::istream_iterator<std::string>(words), {});
    }
    std::vector<std::string> features;
    for (const char* feature : kTold)
        if (std::find(all.begin(), all.end(), feature) != all.end()) features.push_back(feature);
    std::string text;
    for (const std::string& feature : features) text.append(" ").append(feature);

    Findings findings(2);
    Finding& cpu = findings[0];
    cpu.check = "processor";
    cpu.found = (model.empty() ? "(no name)" : model) + ", " + std::to_string(default_thread_count()) + " cores for decode threads;" +
                (text.empty() ? " none of the features that kernels use" : text);
    cpu.values = {{"name", model}, {"threads", uint64_t{default_thread_count()}}, {"features", features}};

    Finding& sets = findings[1];
    sets.check = "kernels";
    sets.needed = true;
    const kernels::KernelSet* const set = kernels::select_kernels(forced_kernels);
    std::string known;
    for (const char* const* name = kernels::kernel_set_names(); *name != nullptr; ++name) known += std::string(known.empty() ? "" : ", ") + *name;
    sets.values = {{"in_use", std::string(set == nullptr ? "" : set->name)}, {"built", known}};
    if (set == nullptr) {
        sets.verdict = Verdict::kNotAvailable;
        sets.found = std::string("WEIR_KERNELS=") + forced_kernels + " is unknown, or not for this CPU; built: " + known;
        sets.mend = "unset WEIR_KERNELS";
        return findings;
    }
    sets.found = std::string(set->name) + " of " + known;
    if (std::string(set->name) == "scalar") {
        sets.verdict = Verdict::kSlower;
        const bool forced = forced_kernels != nullptr && *forced_kernels != 0;
        sets.mend = forced ? "unset WEIR_KERNELS" : "a CPU with AVX2, FMA and F16C computes several times as fast";
    }
    return findings;
}

}  // namespace weir
