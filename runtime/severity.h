// What the journal should know of a line on stderr that is more than news: sd-daemon(3)'s "<3>" in front of it. Nothing
// where stderr is read by anybody else.
#pragma once

#include <sys/stat.h>

#include <cstdlib>
#include <string>

namespace weir {

enum class Severity { kFatal = 2, kError = 3, kWarning = 4, kNotice = 5 };

// JOURNAL_STREAM names the journal's socket as "device:inode", systemd.exec(5).
inline const char* severity_prefix(Severity severity) noexcept {
    const char* const journal = std::getenv("JOURNAL_STREAM");
    struct stat now;
    if (journal == nullptr || ::fstat(2, &now) != 0) return "";
    char* end = nullptr;
    if (std::strtoull(journal, &end, 10) != now.st_dev || *end != ':' ||
        std::strtoull(end + 1, nullptr, 10) != now.st_ino)
        return "";
    switch (severity) {
        case Severity::kFatal: return "<2>";
        case Severity::kError: return "<3>";
        case Severity::kWarning: return "<4>";
        case Severity::kNotice: return "<5>";
    }
    return "";
}

}  // namespace weir
