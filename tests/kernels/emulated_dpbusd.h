// vpdpbusd as CPUs with AVX-VNNI encode it (VEX.256.66.0F38.W0 50 /r), on CPUs that have not got it: the trap that it
// ends in does what it should have done. One instruction with all its operands' forms, read from the bytes that the
// compiler wrote (Intel's manual, volume 2), so what runs is the table as it is shipped. Some microseconds each. x86-64
// Linux.
#pragma once

namespace weir::test {

// While it lives, of which there may be one, the process's illegal instructions come here. Any other one ends the
// process.
class EmulatedDpbusd {
  public:
    EmulatedDpbusd();
    ~EmulatedDpbusd();
    EmulatedDpbusd(const EmulatedDpbusd&) = delete;
    EmulatedDpbusd& operator=(const EmulatedDpbusd&) = delete;
};

}  // namespace weir::test
