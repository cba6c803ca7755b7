// What the kernel really lets this process do: each rung of the pager's ladders tried on scratch pages, whatever its
// version says. For `weir doctor` and for tests; a pager probes for itself what it takes.
//
// Any thread; milliseconds, and a second at most where a fault is never reported. Needs the memory of two PMD pages.
// Throws std::runtime_error where not even address space for them is to be had.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pager/uffd.h"

namespace weir::pager {

// How far a rung got: step names what failed or was missing, error is its errno where it has one; step is empty where all
// of it works.
struct RungProbe {
    const char* step = "";
    int error = 0;
    bool works() const { return *step == 0; }
};

// Opens, registers a scratch page, has a thread touch it, answers the fault, and looks at what the thread has read.
RungProbe probe_uffd(UffdSource source);

struct InstallProbe {
    RungProbe move;               // UFFDIO_MOVE of a base page
    RungProbe copy;               // UFFDIO_COPY of a base page
    RungProbe huge_move;          // UFFDIO_MOVE of a whole PMD page
    bool huge_frame = false;      // the scratch frame was a huge page
    bool stays_huge = false;      // and it still was one where it had been moved to, by smaps
};

// By the first rung of userfaultfd that works; nothing is tried where none does.
InstallProbe probe_install();

struct UringProbe {
    int error = 0;                    // with which a plain ring is refused; 0 where it is given
    std::vector<std::string> flags;   // of io_uring_setup that this kernel takes: "single_issuer", "defer_taskrun", ...
};

UringProbe probe_uring();

}  // namespace weir::pager
