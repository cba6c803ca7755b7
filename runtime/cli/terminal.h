// The program's edges to the outside: standard streams and signals. For the main thread.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace weir {

// Whoever read our output is gone, which is no error to talk about: main ends with status 1 and says nothing.
struct OutputClosed {};

// Called first in main. A closed pipe or a file size limit gives an error where it is written to, not a
// signal, and descriptors 0 to 2 are taken, so that no file that is opened later becomes one of them.
void prepare_process();

// Writes to stdout at once. Throws OutputClosed where the reader is gone, Error where writing fails
// otherwise.
void write_stdout(std::string_view text);

// One line "weir: MESSAGE" on stderr. Control characters in the message become blanks.
void complain(std::string_view message) noexcept;

bool stderr_is_terminal();

// Everything in a file, "-" for standard input. what: "the prompt", for the message. Throws Error where it cannot be read,
// or is larger than any text that is meant to be one.
std::string read_text(const std::string& path, const char* what);

// A line on stderr that is written over until the object goes, and wiped then. Only on a terminal.
class ProgressLine {
  public:
    ProgressLine() = default;
    ~ProgressLine();
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;

    // True where show() would be seen now: on a terminal, and not five times a second already.
    bool due() const;
    void show(const std::string& text);

  private:
    const bool on_ = stderr_is_terminal();
    bool shown_ = false;
    std::chrono::steady_clock::time_point last_ = {};
};

// While one exists, the first SIGINT, SIGTERM or SIGHUP only sets a flag (and interrupts blocking calls); a
// second one ends the process at once. At most one at a time.
class StopSignals {
  public:
    // patient: a second one, and SIGQUIT, end nothing either. For who has something of the machine's to put back.
    explicit StopSignals(bool patient = false);
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    // The signal's number, 0 where none came.
    int asked() const;
};

}  // namespace weir
