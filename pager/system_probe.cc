#include "pager/system_probe.h"

#include <linux/io_uring.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "pager/mapping.h"
#include "pager/system.h"

// Newer than the headers of Debian 12; from Linux 6.6's include/uapi/linux/io_uring.h.
#ifndef IORING_SETUP_NO_SQARRAY
#define IORING_SETUP_NO_SQARRAY (1U << 16)
#endif

namespace weir::pager {
namespace {

constexpr int kFaultTimeoutMs = 1000;
// A page that was just written may be held for a moment.
constexpr int kBusyAttempts = 100;
// Larger PMD pages (512 MiB with 64 KiB base pages) are too much for a look at them.
constexpr size_t kLargestScratch = 64u << 20;
constexpr std::byte kMark{0x5a};

void touch(const Mapping& pages) {
    for (size_t at = 0; at < pages.bytes(); at += kernel_page_size()) pages.base()[at] = kMark;
}

template <typename Install>
RungProbe tried(Uffd& uffd, const char* step, Install install) {
    Outcome outcome = Outcome::kBusy;
    for (int i = 0; outcome == Outcome::kBusy && i < kBusyAttempts; ++i) {
        if (i > 0) ::usleep(100);
        outcome = install();
    }
    if (outcome == Outcome::kDone) return {};
    return {step, outcome == Outcome::kFatal ? uffd.last_error() : EBUSY};
}

// The fault of another thread on `page`, answered by a copy of `mark`.
RungProbe answer_fault(std::unique_ptr<Uffd> uffd, const Mapping& page, const Mapping& mark) {
    std::atomic<std::byte> seen{};
    std::jthread reader([&] { seen.store(*static_cast<const volatile std::byte*>(page.base())); });
    RungProbe probe;
    struct pollfd ready = {uffd->fd(), POLLIN, 0};
    uintptr_t address = 0;
    if (::poll(&ready, 1, kFaultTimeoutMs) <= 0 || !uffd->next_fault(&address)) {
        probe = {"no fault is reported", ETIMEDOUT};
    } else if (address - reinterpret_cast<uintptr_t>(page.base()) >= page.bytes()) {
        probe = {"a fault is reported elsewhere", EFAULT};
    } else {
        probe = tried(*uffd, "UFFDIO_COPY", [&] { return uffd->copy(page.base(), mark.base(), page.bytes()); });
    }
    uffd.reset();  // wakes the reader where nothing else did
    reader.join();
    if (probe.works() && seen.load() != kMark) probe = {"the page is not what was installed", EIO};
    return probe;
}

}  // namespace

RungProbe probe_uffd(UffdSource source) {
    if (const int error = probe_uffd_open(source); error != 0) return {"open", error};
    auto uffd = std::make_unique<Uffd>(source);
    const Mapping page(page_size(), page_size(), false, "scratch page");
    const Mapping mark(page_size(), page_size(), false, "scratch page");
    touch(mark);
    if (const int error = uffd->register_range(page.base(), page.bytes()); error != 0) return {"UFFDIO_REGISTER", -error};
    return answer_fault(std::move(uffd), page, mark);
}

InstallProbe probe_install() {
    InstallProbe probe;
    std::unique_ptr<Uffd> uffd;
    try {
        uffd = std::make_unique<Uffd>(UffdSource::kAuto);
    } catch (const std::runtime_error&) {
        probe.move = probe.copy = probe.huge_move = {"no userfaultfd", 0};
        return probe;
    }
    const Mapping from(page_size(), page_size(), false, "scratch page");
    const Mapping to(2 * page_size(), page_size(), false, "scratch page");
    touch(from);
    if (const int error = uffd->register_range(to.base(), to.bytes()); error != 0) {
        probe.move = probe.copy = probe.huge_move = {"UFFDIO_REGISTER", -error};
        return probe;
    }
    probe.copy = tried(*uffd, "UFFDIO_COPY", [&] { return uffd->copy(to.base(), from.base(), page_size()); });
    if (!uffd->has_move()) {
        probe.move = probe.huge_move = {"UFFDIO_MOVE", ENOSYS};
        return probe;
    }
    probe.move = tried(*uffd, "UFFDIO_MOVE", [&] { return uffd->move(to.base() + page_size(), from.base(), page_size()); });
    if (probe.move.works() && to.base()[page_size()] != kMark) probe.move = {"the page is not what was installed", EIO};

    const size_t pmd = pmd_page_size();
    if (!huge_pages_allowed() || pmd == page_size() || pmd > kLargestScratch) {
        probe.huge_move = {"no huge frame to be had", 0};
        return probe;
    }
    const Mapping frame(pmd, pmd, true, "scratch frame");
    const Mapping slot(pmd, pmd, true, "scratch slot");
    touch(frame);
    probe.huge_frame = anon_huge_bytes(frame.base(), pmd) >= pmd;
    if (const int error = uffd->register_range(slot.base(), pmd); error != 0) {
        probe.huge_move = {"UFFDIO_REGISTER", -error};
        return probe;
    }
    probe.huge_move = tried(*uffd, "UFFDIO_MOVE", [&] { return uffd->move(slot.base(), frame.base(), pmd); });
    if (!probe.huge_move.works()) return probe;
    probe.stays_huge = probe.huge_frame && anon_huge_bytes(slot.base(), pmd) >= pmd;
    if (slot.base()[pmd - kernel_page_size()] != kMark) probe.huge_move = {"the page is not what was installed", EIO};
    return probe;
}

UringProbe probe_uring() {
    static constexpr struct {
        const char* name;
        uint32_t flags;
    } kFlags[] = {
        {"", 0},
        {"coop_taskrun", IORING_SETUP_COOP_TASKRUN},                                // Linux 5.19
        {"single_issuer", IORING_SETUP_SINGLE_ISSUER},                              // 6.0
        {"defer_taskrun", IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN}, // 6.1
        {"no_sqarray", IORING_SETUP_NO_SQARRAY},                                    // 6.6
    };
    UringProbe probe;
    for (const auto& [name, flags] : kFlags) {
        struct io_uring_params params = {};
        params.flags = flags;
        const int fd = static_cast<int>(::syscall(SYS_io_uring_setup, 8, &params));
        const int error = fd < 0 ? errno : 0;
        if (fd >= 0) ::close(fd);
        if (*name == 0) probe.error = error;
        if (*name != 0 && error == 0) probe.flags.push_back(name);
    }
    return probe;
}

}  // namespace weir::pager
