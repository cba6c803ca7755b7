// The two ways in which a run fails. Both carry one line that names what, where and what to do; main prints it
// and exits with 1 (Error) or 2 (UsageError).
#pragma once

#include <stdexcept>

namespace weir {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct UsageError : Error {
    using Error::Error;
};

}  // namespace weir
