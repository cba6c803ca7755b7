// Calls in an answer's text, as models of the Qwen family write them (Hermes' form):
//
//   <tool_call>
//   {"name": "...", "arguments": {...}}
//   </tool_call>
//
// What is not such a call, or calls what there is not, stays text.
//
// One per answer, one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/chat.h"
#include "runtime/service/openai_tools.h"

namespace weir {

inline constexpr std::string_view kToolCallBegin = "<tool_call>";
inline constexpr std::string_view kToolCallEnd = "</tool_call>";

class ToolCallReader {
  public:
    // Without tools all is text, and comes at once.
    explicit ToolCallReader(const ToolUse& tools) : tools_(tools) {}

    struct Found {
        std::string text;
        std::vector<ToolCall> calls;
    };
    // What is clear by now. Text that could be the beginning of a call waits.
    Found add(std::string_view text);
    // What is left when no text follows.
    Found finish();

  private:
    bool take(Found* found);
    bool read_call(std::string_view json, Found* found);

    const ToolUse tools_;
    std::string held_;
    bool inside_ = false;  // of a call: held_ begins behind its opening
    bool called_ = false;
};

}  // namespace weir
