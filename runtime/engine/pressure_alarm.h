// The kernel's word that tasks have begun to stall for memory, for who does not want to look all the time. Not everybody may
// have it: Linux 6.4 gives it to ordinary users, older ones to root alone.
// Source: Documentation/accounting/psi.rst, "Monitoring for pressure thresholds".
//
// One thread. Nothing throws.
#pragma once

#include <chrono>
#include <filesystem>

namespace weir {

class PressureAlarm {
  public:
    // root: where /proc lies; only a real one is asked.
    explicit PressureAlarm(const std::filesystem::path& root);
    ~PressureAlarm();
    PressureAlarm(const PressureAlarm&) = delete;
    PressureAlarm& operator=(const PressureAlarm&) = delete;

    bool is_set() const { return fd_ >= 0; }
    // Until tasks stall, somebody writes to the eventfd `call`, or the time is over. True where tasks stall.
    bool wait(int call, std::chrono::milliseconds at_most);

  private:
    int fd_ = -1;
};

}  // namespace weir
