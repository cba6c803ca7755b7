// The decoder once more, as plainly as it can be written: one token after the other, in double precision, from
// dequantised weights. Shares nothing with the engine but the reader and dequantise().
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/gguf.h"

namespace weir::test {

class ReferenceDecoder {
  public:
    explicit ReferenceDecoder(const std::string& path);
    // Logits after `id` at the next position.
    std::vector<double> step(int32_t id);

  private:
    using Vector = std::vector<double>;
    Vector product(const std::string& name, const Vector& x) const;
    Vector normed(const Vector& x, const std::string& weight) const;
    void rotate(Vector& heads, size_t position) const;

    ModelConfig config_;
    std::map<std::string, std::vector<float>> weights_;
    std::vector<std::vector<Vector>> keys_;    // [layer][position]
    std::vector<std::vector<Vector>> values_;  // [layer][position]
};

}  // namespace weir::test
