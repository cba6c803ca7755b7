// A read of a mapped page that the file no longer has is a SIGBUS. Where files are mapped, the process ends with a line
// and status 1 instead of by the signal.
#pragma once

namespace weir {

// Installs the handler; once is enough. Any thread.
void end_with_a_line_on_sigbus();

}  // namespace weir
