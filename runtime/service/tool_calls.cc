#include "runtime/service/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/service/api_error.h"
#include "runtime/service/openai_request.h"

namespace weir {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

size_t without_blanks(std::string_view text) {
    const size_t last = text.find_last_not_of(kBlanks);
    return last == std::string_view::npos ? 0 : last + 1;
}

// How much of the text's end could be the beginning of a call, blanks before it included.
size_t undecided(std::string_view text) {
    size_t keep = 0;
    for (size_t n = std::min(kToolCallBegin.size() - 1, text.size()); n > 0 && keep == 0; --n) {
        if (text.substr(text.size() - n) == kToolCallBegin.substr(0, n)) keep = n;
    }
    return text.size() - without_blanks(text.substr(0, text.size() - keep));
}

}  // namespace

ToolCallReader::Found ToolCallReader::add(std::string_view text) {
    Found found;
    if (tools_.names.empty()) {
        found.text = text;
        return found;
    }
    held_ += text;
    while (take(&found)) {
    }
    return found;
}

// One step; false where more text is needed.
bool ToolCallReader::take(Found* found) {
    if (!inside_) {
        const size_t begin = held_.find(kToolCallBegin);
        inside_ = begin != std::string::npos;
        const size_t given =
            inside_ ? without_blanks(std::string_view(held_).substr(0, begin)) : held_.size() - undecided(held_);
        found->text.append(held_, 0, given);
        held_.erase(0, inside_ ? begin + kToolCallBegin.size() : given);
        return inside_;
    }
    const size_t end = held_.find(kToolCallEnd);
    if (end == std::string::npos) return false;
    if (!read_call(std::string_view(held_).substr(0, end), found)) {
        found->text.append(kToolCallBegin).append(held_, 0, end + kToolCallEnd.size());
    }
    held_.erase(0, end + kToolCallEnd.size());
    inside_ = false;
    return true;
}

bool ToolCallReader::read_call(std::string_view text, Found* found) {
    try {
        const nlohmann::ordered_json json = parse_body(text);
        const auto name = json.find("name"), arguments = json.find("arguments");
        if (name == json.end() || !name->is_string() || arguments == json.end() || !arguments->is_object())
            return false;
        const std::string called = name->get<std::string>();
        if (std::find(tools_.names.begin(), tools_.names.end(), called) == tools_.names.end()) return false;
        found->calls.push_back({called, python_json(*arguments)});
        called_ = true;
        return true;
    } catch (const ApiError&) {
        return false;
    }
}

// A call that the answer ended in before its closing mark may be whole.
ToolCallReader::Found ToolCallReader::finish() {
    Found found;
    if (inside_ && !read_call(held_, &found)) found.text.append(kToolCallBegin).append(held_);
    if (!inside_ && (!called_ || without_blanks(held_) > 0)) found.text = held_;
    held_.clear();
    inside_ = false;
    return found;
}

}  // namespace weir
