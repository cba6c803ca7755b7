// A file as the pager would read it: its file system, direct reads, and the device below.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "pager/device_probe.h"
#include "pager/file.h"
#include "runtime/cli/doctor_report.h"
#include "runtime/cli/format.h"
#include "runtime/engine/memory_limits.h"
#include "runtime/engine/team.h"
#include "runtime/error.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

constexpr size_t kDepths[] = {1, 2, 4, 8, 16, 32, 64};
// Of one depth: enough for a steady state on a fast drive, and all depths together within some eight seconds on a slow one.
constexpr uint64_t kProbeBytes = 768u << 20;
constexpr double kProbeSeconds = 0.9;
// Below this share of its own speed a device is slower beside threads that compute.
constexpr double kBusyShare = 0.85;
constexpr uint64_t kMostRounds = 16;  // over a short file
constexpr double kLongestDepth = 2;  // seconds that filling a queue alone may take
constexpr size_t kLatencyReads = 2000;

// "ext4", by the mount that the file lies in; empty where the kernel does not say (STATX_MNT_ID, Linux 5.8).
std::string file_system(const std::string& path) {
    struct statx about;
    if (::statx(AT_FDCWD, path.c_str(), 0, STATX_MNT_ID, &about) != 0 || (about.stx_mask & STATX_MNT_ID) == 0) return "";
    // "36 35 98:0 /root /mount options ... - ext4 /dev/vda opts": any number of fields before the dash
    std::ifstream mounts("/proc/self/mountinfo");
    std::string line;
    while (std::getline(mounts, line)) {
        std::istringstream words(line);
        uint64_t id = 0;
        std::string word;
        if (!(words >> id) || id != about.stx_mnt_id) continue;
        while (words >> word)
            if (word == "-" && words >> word) return word;
    }
    return "";
}

std::string read_mend(const std::string& fs) {
    if (fs == "tmpfs" || fs == "ramfs") return "the file takes memory twice here: put it on a disk";
    if (fs == "squashfs" || fs == "overlay") return "put the model on a plain file system (a bind mount or a volume), past the image's layers";
    if (fs == "nfs" || fs == "nfs4" || fs == "9p" || fs == "fuse") return "copy the model to a local disk";
    return "put the model on ext4 or xfs";
}

Finding direct_finding(const pager::File& file, const std::string& fs) {
    Finding f;
    f.check = "file: direct reads";
    f.values = {{"direct", file.direct()}, {"file_system", fs}, {"granule", uint64_t{file.granule()}}};
    if (!file.direct()) {
        f.verdict = Verdict::kSlower;
        f.found = file.why_buffered() + "; read through the page cache, which is dropped behind";
        f.mend = read_mend(fs);
        return f;
    }
    f.found = "work, in steps of " + format_bytes(file.granule());
    if (file.stated_offset_align() != 0) {
        f.found += " (the file system asks for " + format_bytes(file.stated_offset_align()) + ", of memory " +
                   format_bytes(file.stated_memory_align()) + ")";
        f.values.emplace_back("offset_align", uint64_t{file.stated_offset_align()});
        f.values.emplace_back("memory_align", uint64_t{file.stated_memory_align()});
    } else {
        f.found += " (by a probe: the file system does not say)";
    }
    return f;
}

// Frames of the deepest queue must not be what brings the machine down.
uint64_t frames_allowed() {
    try {
        return read_memory_limits().sensible() / 4;
    } catch (const Error&) {
        return kProbeBytes;
    }
}

// The same reads where a run has it harder: beside threads that compute, and into memory that is touched for the first time.
Finding harder_finding(const pager::File& file, const pager::DeviceSpeed& best, const DoctorProgress& progress) {
    progress("reading " + printable(file.path()) + " while all cores compute");
    pager::DeviceProbe probe;
    probe.depth = best.depth;
    probe.bytes = std::min({kProbeBytes, kMostRounds * file.size(), frames_allowed()});
    probe.seconds_limit = kProbeSeconds;
    probe.busy_threads = default_thread_count();
    const double busy = probe_device(file, probe).bytes_per_s;
    probe.busy_threads = 0;
    probe.fresh = true;
    const double fresh = probe_device(file, probe).bytes_per_s;
    Finding f;
    f.check = "device: in a run";
    f.found = format_fixed(busy / 1e9, 2) + " GB/s while all cores compute; " + format_fixed(fresh / 1e9, 2) +
              " GB/s into memory that was never touched, as in the first pass";
    f.values = {{"busy_bytes_per_s", busy}, {"fresh_bytes_per_s", fresh}};
    if (busy < kBusyShare * best.bytes_per_s) {
        f.verdict = Verdict::kSlower;
        f.mend = "reads take the cores' time here (a virtual disk that the host serves from the same cores, or encryption): what a "
                 "token computes and what it reads add up in part";
    }
    return f;
}

Finding speed_finding(const pager::File& file, const DoctorProgress& progress, pager::DeviceSpeed* fastest) {
    Finding f;
    f.check = "device: sequential";
    const uint64_t allowed = frames_allowed();
    pager::DeviceSpeed& best = *fastest;
    for (size_t i = 0; i < std::size(kDepths); ++i) {
        const size_t depth = kDepths[i];
        const uint64_t frames = depth * (uint64_t{2} << 20);
        if (i > 0 && (frames > allowed || static_cast<double>(frames) > kLongestDepth * best.bytes_per_s)) break;
        progress("reading " + printable(file.path()) + ", " + std::to_string(depth) + " at a time");
        pager::DeviceProbe probe;
        probe.depth = depth;
        probe.bytes = std::min(kProbeBytes, kMostRounds * file.size());
        probe.seconds_limit = kProbeSeconds;
        probe.from = file.size() / std::size(kDepths) * i;  // a device's own cache should not see the same place twice
        const pager::DeviceSpeed speed = probe_device(file, probe);
        f.found += (f.found.empty() ? "" : ", ") + std::to_string(depth) + ": " + format_fixed(speed.bytes_per_s / 1e9, 2);
        f.values.emplace_back("depth_" + std::to_string(depth), speed.bytes_per_s);
        if (speed.bytes_per_s > best.bytes_per_s) best = speed;
    }
    f.found += " GB/s by reads at once; best " + format_fixed(best.bytes_per_s / 1e9, 2) + " GB/s at " + std::to_string(best.depth);
    f.values.emplace_back("bytes_per_s", best.bytes_per_s);
    f.values.emplace_back("best_depth", uint64_t{best.depth});
    f.values.emplace_back("huge_frames", best.huge_frames);
    if (file.size() < best.read_bytes * 8) f.found += " (the file is too short to say much)";
    if (!best.huge_frames) {
        f.verdict = Verdict::kSlower;
        f.found += ", into small pages";
        f.mend = "see transparent huge pages: into small pages the same disk may give half";
    }
    return f;
}

Finding latency_finding(const pager::File& file, const DoctorProgress& progress) {
    progress("reading " + printable(file.path()) + ", here and there");
    const pager::DeviceLatency latency = pager::probe_latency(file, kLatencyReads, kProbeSeconds);
    Finding f;
    f.check = "device: one small read";
    f.found = format_bytes(latency.read_bytes) + ": p50 " + format_fixed(latency.p50_us, 0) + " us, p99 " +
              format_fixed(latency.p99_us, 0) + " us of " + std::to_string(latency.reads) + " random reads";
    f.values = {{"p50_us", latency.p50_us}, {"p99_us", latency.p99_us}, {"reads", uint64_t{latency.reads}},
                {"read_bytes", uint64_t{latency.read_bytes}}};
    return f;
}

}  // namespace

Findings examine_file(const std::string& path, const DoctorProgress& progress) {
    try {
        const pager::File file = pager::File::open(path, pager::IoMode::kAuto);
        const std::string fs = file_system(path);
        Finding about;
        about.check = "file";
        about.found = path + ": " + format_bytes(file.size()) + " on " + (fs.empty() ? "an unknown file system" : fs);
        about.values = {{"path", path}, {"bytes", file.size()}, {"file_system", fs}};
        Findings findings;
        findings.push_back(std::move(about));
        findings.push_back(direct_finding(file, fs));
        if (file.size() == 0) return findings;
        pager::DeviceSpeed fastest;
        findings.push_back(speed_finding(file, progress, &fastest));
        findings.push_back(harder_finding(file, fastest, progress));
        findings.push_back(latency_finding(file, progress));
        return findings;
    } catch (const std::runtime_error& error) {
        throw Error(error.what());
    }
}

}  // namespace weir
