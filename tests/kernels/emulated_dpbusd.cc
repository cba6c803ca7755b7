#include "tests/kernels/emulated_dpbusd.h"

#include <cpuid.h>
#include <signal.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace weir::test {
namespace {

// In the frame of a signal, as the CPU's XSAVE lays it out: 512 bytes of old state, which hold the low halves of the
// vectors, a header that says which parts are there, and the high halves where CPUID says.
constexpr size_t kXmmAt = 160, kPartsAt = 512, kPartBytes = 16 * 16;
constexpr uint64_t kLowHalves = 1u << 1, kHighHalves = 1u << 2;
size_t high_halves_at = 0;
struct sigaction before;

struct Vector {
    uint8_t bytes[32];
};

class Vectors {
  public:
    explicit Vectors(void* saved) : saved_(static_cast<char*>(saved)) {
        uint64_t parts;
        std::memcpy(&parts, saved_ + kPartsAt, sizeof parts);
        // What is not there is zero.
        if ((parts & kLowHalves) == 0) std::memset(saved_ + kXmmAt, 0, kPartBytes);
        if ((parts & kHighHalves) == 0) std::memset(saved_ + high_halves_at, 0, kPartBytes);
        parts |= kLowHalves | kHighHalves;
        std::memcpy(saved_ + kPartsAt, &parts, sizeof parts);
    }
    Vector get(size_t i) const {
        Vector v;
        std::memcpy(v.bytes, saved_ + kXmmAt + 16 * i, 16);
        std::memcpy(v.bytes + 16, saved_ + high_halves_at + 16 * i, 16);
        return v;
    }
    void set(size_t i, const Vector& v) {
        std::memcpy(saved_ + kXmmAt + 16 * i, v.bytes, 16);
        std::memcpy(saved_ + high_halves_at + 16 * i, v.bytes + 16, 16);
    }

  private:
    char* saved_;
};

// By the numbers that instructions give registers.
constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

template <class T>
T take(const uint8_t*& at) {
    T v;
    std::memcpy(&v, at, sizeof v);
    at += sizeof v;
    return v;
}

// The address that ModRM and what follows it name; `at` behind ModRM, and afterwards behind all of it.
const uint8_t* address(const gregset_t& registers, unsigned mod, unsigned rm, unsigned x_bit, unsigned b_bit,
                       const uint8_t*& at) {
    const auto value = [&](unsigned i) { return static_cast<uint64_t>(registers[kRegisters[i]]); };
    uint64_t sum = 0;
    bool wide_offset = mod == 2, from_instruction = false;
    if (rm == 4) {
        const unsigned sib = take<uint8_t>(at), index = (sib >> 3 & 7) | x_bit << 3, base = sib & 7;
        if (index != 4) sum += value(index) << (sib >> 6);
        if (base == 5 && mod == 0) wide_offset = true;
        else sum += value(base | b_bit << 3);
    } else if (rm == 5 && mod == 0) {
        wide_offset = from_instruction = true;
    } else {
        sum += value(rm | b_bit << 3);
    }
    if (mod == 1) sum += static_cast<uint64_t>(int64_t{take<int8_t>(at)});
    if (wide_offset) sum += static_cast<uint64_t>(int64_t{take<int32_t>(at)});
    if (from_instruction) sum += reinterpret_cast<uint64_t>(at);
    return reinterpret_cast<const uint8_t*>(sum);
}

Vector dot(const Vector& sum, const Vector& unsigned_bytes, const Vector& signed_bytes) {
    Vector out;
    for (size_t i = 0; i < 32; i += 4) {
        int32_t lane;
        std::memcpy(&lane, sum.bytes + i, sizeof lane);
        for (size_t j = i; j < i + 4; ++j) lane += unsigned_bytes.bytes[j] * static_cast<int8_t>(signed_bytes.bytes[j]);
        std::memcpy(out.bytes + i, &lane, sizeof lane);
    }
    return out;
}

void on_illegal_instruction(int, siginfo_t*, void* of) {
    mcontext_t& context = static_cast<ucontext_t*>(of)->uc_mcontext;
    const auto* at = reinterpret_cast<const uint8_t*>(context.gregs[REG_RIP]);
    const unsigned vex = at[0], bits = at[1], more = at[2], opcode = at[3], modrm = at[4];
    // 0F38; W0, 256 bits, 66
    if (vex != 0xc4 || (bits & 0x1f) != 2 || (more & 0x87) != 0x05 || opcode != 0x50) {
        sigaction(SIGILL, &before, nullptr);  // happens again, to whoever was there before
        return;
    }
    at += 5;
    const unsigned r_bit = ~bits >> 7 & 1, x_bit = ~bits >> 6 & 1, b_bit = ~bits >> 5 & 1;
    const unsigned to = (modrm >> 3 & 7) | r_bit << 3, first = ~more >> 3 & 15, mod = modrm >> 6, rm = modrm & 7;
    Vectors vectors(context.fpregs);
    Vector second;
    if (mod == 3) second = vectors.get(rm | b_bit << 3);
    else std::memcpy(second.bytes, address(context.gregs, mod, rm, x_bit, b_bit, at), sizeof second.bytes);
    vectors.set(to, dot(vectors.get(to), vectors.get(first), second));
    context.gregs[REG_RIP] = static_cast<greg_t>(reinterpret_cast<uintptr_t>(at));
}

}  // namespace

EmulatedDpbusd::EmulatedDpbusd() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(0xd, 2, &a, &b, &c, &d) == 0) std::abort();
    high_halves_at = b;
    struct sigaction action = {};
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO;
    if (sigaction(SIGILL, &action, &before) != 0) std::abort();
}

EmulatedDpbusd::~EmulatedDpbusd() {
    sigaction(SIGILL, &before, nullptr);
}

}  // namespace weir::test
