// Everything but the completions: what the model is, what the server does, text to tokens and back.
#include "runtime/error.h"
#include "runtime/service/api_error.h"
#include "runtime/service/http_handlers.h"
#include "runtime/service/metrics.h"
#include "runtime/service/openai_answer.h"
#include "runtime/service/openai_request.h"

namespace weir {
namespace {

using nlohmann::ordered_json;

void send(httplib::Response& response, const ordered_json& body) { response.set_content(dump(body), "application/json"); }

const char* state_name(SlotState state) {
    switch (state) {
        case SlotState::kIdle: return "idle";
        case SlotState::kPrompt: return "prompt";
        case SlotState::kDecode: return "decode";
    }
    return "?";
}

bool flag(const ordered_json& body, const char* field) {
    const auto it = body.find(field);
    return it != body.end() && it->is_boolean() && it->get<bool>();
}

}  // namespace

void serve_models(const ModelService& service, const httplib::Request& request, httplib::Response& response) {
    const ordered_json model{{"id", service.name}, {"object", "model"}, {"created", service.created}, {"owned_by", "weir"}};
    if (request.path == "/v1/models") return send(response, {{"object", "list"}, {"data", ordered_json::array({model})}});
    const std::string asked = request.matches.size() > 1 ? request.matches[1].str() : "";
    if (asked != service.name) throw ApiError(404, "there is no model '" + asked + "': this server has '" + service.name + "'", "model", "model_not_found");
    send(response, model);
}

void serve_props(const ModelService& service, const httplib::Request&, httplib::Response& response) {
    ordered_json body = service.properties;
    body["total_slots"] = service.scheduler.stats().slots.size();
    body["default_generation_settings"] = {{"n_ctx", service.scheduler.context()},
                                           {"temperature", service.sampler.temperature},
                                           {"top_k", service.sampler.top_k},
                                           {"top_p", service.sampler.top_p},
                                           {"min_p", service.sampler.min_p}};
    body["chat_template"] = service.chat ? ordered_json(service.chat->name()) : ordered_json();
    body["rungs"] = service.scheduler.stats().store.rungs;
    send(response, body);
}

// Of prompts their length alone: what people write is nobody's to read here.
void serve_slots(const ModelService& service, const httplib::Request&, httplib::Response& response) {
    const SchedulerStats stats = service.scheduler.stats();
    ordered_json slots = ordered_json::array();
    for (size_t i = 0; i < stats.slots.size(); ++i) {
        const SlotInfo& slot = stats.slots[i];
        slots.push_back({{"id", i},
                         {"is_processing", slot.state != SlotState::kIdle},
                         {"state", state_name(slot.state)},
                         {"n_ctx", stats.context},
                         {"n_cached", slot.cached_tokens},
                         {"n_prompt", slot.prompt_tokens},
                         {"n_decoded", slot.generated}});
    }
    send(response, slots);
}

void serve_metrics(const ModelService& service, const httplib::Request&, httplib::Response& response) {
    response.set_content(metrics_text(service), kMetricsType);
}

void serve_tokenize(const ModelService& service, const httplib::Request& request, httplib::Response& response) {
    const ordered_json body = parse_body(request.body);
    const auto content = body.find("content");
    if (content == body.end() || !content->is_string()) throw ApiError(400, "'content' must be a string", "content", "invalid_value");
    const bool parse_special = !body.contains("parse_special") || flag(body, "parse_special");
    send(response, {{"tokens", service.tokenizer.encode(content->get<std::string>(), flag(body, "add_special"), parse_special)}});
}

void serve_detokenize(const ModelService& service, const httplib::Request& request, httplib::Response& response) {
    const ordered_json body = parse_body(request.body);
    const auto tokens = body.find("tokens");
    if (tokens == body.end() || !tokens->is_array()) throw ApiError(400, "'tokens' must be an array of token ids", "tokens", "invalid_value");
    std::vector<TokenId> ids;
    for (const ordered_json& id : *tokens) {
        const bool known = id.is_number_unsigned() && id.get<uint64_t>() < service.tokenizer.size();
        if (!known) throw ApiError(400, "'tokens' must hold token ids of this model's vocabulary", "tokens", "invalid_value");
        ids.push_back(id.get<TokenId>());
    }
    send(response, {{"content", valid_utf8(service.tokenizer.decode(ids))}});
}

void serve_apply_template(const ModelService& service, const httplib::Request& request, httplib::Response& response) {
    const Conversation conversation = parse_conversation(parse_body(request.body));
    if (!service.chat) throw ApiError(400, service.no_chat, "messages", "no_chat_template");
    try {
        send(response, {{"prompt", service.chat->render(conversation, chat_marks(service.tokenizer))}});
    } catch (const Error& error) {
        throw ApiError(400, error.what(), "messages", "invalid_value");
    }
}

}  // namespace weir
