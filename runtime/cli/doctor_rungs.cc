// The pager's ladders as this process meets them: each rung is tried on scratch pages, and its errno says what to do.
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "pager/system.h"
#include "pager/system_probe.h"
#include "runtime/cli/doctor_report.h"
#include "runtime/cli/format.h"

namespace weir {
namespace {

using pager::RungProbe;
using pager::UffdSource;

constexpr const char* kSeccomp = "allow the system call userfaultfd in the container's seccomp profile";

std::string how_it_failed(const RungProbe& probe) {
    return probe.error == 0 ? probe.step : std::string(probe.step) + ": " + std::strerror(probe.error);
}

std::string uffd_mend(UffdSource source, const RungProbe& probe) {
    switch (source) {
        case UffdSource::kUserModeOnly:
            if (probe.error == EINVAL) return "needs Linux 5.11";
            if (probe.error == ENOSYS) return std::string(kSeccomp) + "; or the kernel was built without CONFIG_USERFAULTFD";
            return kSeccomp;
        case UffdSource::kDevice:
            if (probe.error == ENOENT) return "needs Linux 6.1; in a container, pass the device in: --device /dev/userfaultfd";
            if (probe.error == EACCES || probe.error == EPERM)
                return "give this user read and write access: setfacl -m u:USER:rw /dev/userfaultfd, by a udev rule to last";
            return "";
        case UffdSource::kSystemCall:
            if (probe.error == EPERM)
                return "sysctl vm.unprivileged_userfaultfd=1, or CAP_SYS_PTRACE, or " + std::string(kSeccomp);
            return probe.error == ENOSYS ? kSeccomp : "";
        case UffdSource::kAuto: break;
    }
    return "";
}

Finding uffd_finding(UffdSource source, const char* name) {
    const RungProbe probe = pager::probe_uffd(source);
    Finding f;
    f.check = std::string("userfaultfd: ") + name;
    f.verdict = probe.works() ? Verdict::kOk : Verdict::kNotAvailable;
    f.found = probe.works() ? "a fault on a scratch page is reported and answered" : how_it_failed(probe);
    if (!probe.works()) f.mend = uffd_mend(source, probe);
    f.values = {{"works", probe.works()}, {"errno", static_cast<uint64_t>(probe.error)}};
    return f;
}

Finding install_finding(const char* check, const RungProbe& probe, const std::string& works) {
    Finding f;
    f.check = check;
    f.verdict = probe.works() ? Verdict::kOk : Verdict::kNotAvailable;
    f.found = probe.works() ? works : how_it_failed(probe);
    f.values = {{"works", probe.works()}, {"errno", static_cast<uint64_t>(probe.error)}};
    return f;
}

void add_install(Findings* findings, bool any_uffd) {
    const pager::InstallProbe probe = pager::probe_install();
    Finding huge = install_finding("install: move of huge pages", probe.huge_move, "a moved huge page stays one");
    if (probe.huge_move.works() && !probe.stays_huge) {
        huge.verdict = Verdict::kSlower;
        huge.found = probe.huge_frame ? "works, but the page is split on its way" : "works, but no huge page was to be had for the scratch frame";
        huge.mend = probe.huge_frame ? "" : "memory is fragmented: echo 1 > /proc/sys/vm/compact_memory, or start earlier";
    }
    huge.values.emplace_back("stays_huge", probe.stays_huge);
    Finding move = install_finding("install: move", probe.move, "UFFDIO_MOVE of a page works");
    if (any_uffd && !probe.move.works()) {
        move.mend = "Linux 6.8 has UFFDIO_MOVE; until then every byte that streams is copied once";
        if (!probe.huge_move.works()) huge.mend = "see move";
    } else if (any_uffd && !probe.huge_move.works()) {
        huge.mend = "see transparent huge pages; moving page by page costs the pager some thirty times as much";
    }
    Finding copy = install_finding("install: copy", probe.copy, "UFFDIO_COPY of a page works");
    for (Finding* f : {&huge, &move, &copy}) findings->push_back(std::move(*f));
}

Finding uring_finding() {
    const pager::UringProbe probe = pager::probe_uring();
    Finding f;
    f.check = "io_uring";
    f.values = {{"works", probe.error == 0}, {"errno", static_cast<uint64_t>(probe.error)}, {"flags", probe.flags}};
    if (probe.error != 0) {
        f.verdict = Verdict::kSlower;
        f.found = std::string("io_uring_setup: ") + std::strerror(probe.error) + "; a pool of threads reads instead";
        if (probe.error == EPERM) f.mend = "sysctl kernel.io_uring_disabled=0, or allow io_uring_setup in the container's seccomp profile";
        if (probe.error == ENOSYS) f.mend = "needs Linux 5.1, or io_uring_setup allowed in the container's seccomp profile";
        if (probe.error == ENOMEM) f.mend = "raise the limit on locked memory (ulimit -l): before Linux 5.12 rings count there";
        return f;
    }
    bool deferred = false;
    std::string flags;
    for (const std::string& flag : probe.flags) {
        flags += (flags.empty() ? " " : ", ") + flag;
        deferred |= flag == "defer_taskrun";
    }
    f.found = "takes the flags" + (flags.empty() ? std::string(" of its first version only") : flags);
    if (!deferred) {
        f.verdict = Verdict::kSlower;
        f.mend = "Linux 6.1 runs completions when the pager waits for them (defer_taskrun)";
    }
    return f;
}

Finding memlock_finding() {
    struct rlimit limit = {};
    Finding f;
    f.check = "locked memory";
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        f.verdict = Verdict::kNotAvailable;
        f.found = std::string("the limit cannot be read: ") + std::strerror(errno);
        return f;
    }
    const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
    f.found = unlimited ? "no limit" : format_bytes(limit.rlim_cur) + "; nothing is locked, so that is enough";
    if (!unlimited) f.values.emplace_back("bytes", static_cast<uint64_t>(limit.rlim_cur));
    return f;
}

}  // namespace

Findings examine_rungs() {
    Findings findings;
    bool any_uffd = false;
    for (const auto& [source, name] : {std::pair{UffdSource::kUserModeOnly, "user-mode-only"},
                                       std::pair{UffdSource::kDevice, "device"}, std::pair{UffdSource::kSystemCall, "syscall"}}) {
        findings.push_back(uffd_finding(source, name));
        any_uffd |= findings.back().verdict == Verdict::kOk;
    }
    if (any_uffd) {  // one rung is enough, and the first that works is taken
        for (Finding& f : findings)
            if (f.verdict == Verdict::kNotAvailable) f.found += "; not needed, another one works";
    } else {
        Finding f;
        f.check = "paging";
        f.verdict = Verdict::kSlower;
        f.found = "no userfaultfd: runs go on with --paging advised, the same text under a softer budget";
        f.mend = "make any one of the three above work";
        findings.push_back(std::move(f));
    }
    add_install(&findings, any_uffd);
    findings.push_back(uring_finding());
    findings.push_back(memlock_finding());
    return findings;
}

}  // namespace weir
