// What the server's handlers know of the model they serve. Built by the command when the model is loaded; what it refers to
// outlives the server's threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "runtime/engine/sampler.h"
#include "runtime/model/chat.h"
#include "runtime/model/tokenizer.h"
#include "runtime/service/scheduler.h"

namespace weir {

struct ModelService {
    Scheduler& scheduler;
    const Tokenizer& tokenizer;
    const TokenTrie& trie;
    std::string name;                   // as /v1/models has it
    int64_t created = 0;                // seconds since 1970
    std::optional<ChatTemplate> chat;
    std::string no_chat;                // why there is none
    SamplerOptions sampler;             // of requests that do not say
    uint64_t ram_budget = 0;            // bytes of the whole process
    nlohmann::ordered_json properties;  // for /props: the model's file and shape, how its weights are paged
    mutable std::atomic<size_t> deliveries{0};  // answers whose last byte is not with the client yet
};

}  // namespace weir
