#include "runtime/engine/sigbus.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace weir {
namespace {

// Only what is async-signal-safe happens here.
void on_sigbus(int) {
    static std::atomic_flag told;
    if (told.test_and_set()) {  // another worker is saying it
        for (;;) ::pause();
    }
    static constexpr char kText[] =
        "weir: the model file could not be read while it was mapped: it shrank, or its device failed\n";
    (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
    ::_exit(1);
}

}  // namespace

void end_with_a_line_on_sigbus() {
    struct sigaction action = {};
    action.sa_handler = on_sigbus;
    ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace weir
