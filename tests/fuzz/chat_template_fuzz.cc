// Fuzz target of chat templates: any text is recognised or not, and what is recognised renders conversations or refuses them.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/error.h"
#include "runtime/model/chat.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const auto found = weir::ChatTemplate::recognise(text);
    if (!found) return 0;
    const weir::Conversation conversations[] = {
        {{{"user", text}}},
        {{{"system", text}, {"user", "a"}, {"assistant", text}, {"user", "b"}}},
        {{{"user", "a"}, {"assistant", text, {{"f", "{}"}}}, {"tool", text}, {"tool", "c"}}, {"{\"name\": \"f\"}"}, true, false},
    };
    for (const weir::Conversation& conversation : conversations) {
        try {
            found->render(conversation, {"<s>", "</s>"});
        } catch (const weir::Error&) {
        }
    }
    return 0;
}
