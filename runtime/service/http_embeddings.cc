// /v1/embeddings: the mean of a text's last hidden states, as the head would take them, of length 1. Answers are sent
// text after text, so that thousands of them take no memory; the status when the first is there.
#include <array>
#include <charconv>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "runtime/error.h"
#include "runtime/service/api_error.h"
#include "runtime/service/http_handlers.h"
#include "runtime/service/openai_answer.h"
#include "runtime/service/openai_request.h"

namespace weir {
namespace {

constexpr std::chrono::milliseconds kPatience{50};

std::string base64(const std::vector<float>& values) {
    constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::vector<uint8_t> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    std::string text;
    for (size_t i = 0; i < bytes.size(); i += 3) {
        const size_t n = std::min<size_t>(3, bytes.size() - i);
        uint32_t bits = 0;
        for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (j < n ? bytes[i + j] : 0);
        for (size_t j = 0; j < 4; ++j) text += j <= n ? kLetters[bits >> (18 - 6 * j) & 63] : '=';
    }
    return text;
}

std::string array_of(const std::vector<float>& values) {
    std::string text = "[";
    std::array<char, 32> digits;
    for (const float value : values) {
        if (text.size() > 1) text += ',';
        text.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
    }
    return text + "]";
}

std::vector<std::vector<TokenId>> tokens_of(const ModelService& service, const EmbeddingRequest& asked) {
    std::vector<std::vector<TokenId>> made;
    for (size_t i = 0; i < asked.inputs.size(); ++i) {
        const std::string field = "input[" + std::to_string(i) + "]";
        if (const std::string* const text = std::get_if<std::string>(&asked.inputs[i])) {
            made.push_back(service.tokenizer.encode(*text, true, false));
        } else {
            made.push_back(std::get<std::vector<TokenId>>(asked.inputs[i]));
        }
        for (const TokenId id : made.back()) {
            if (static_cast<size_t>(id) >= service.tokenizer.size()) {
                throw ApiError(400, "token id " + std::to_string(id) + " is not in the vocabulary", field,
                               "invalid_value");
            }
        }
        if (made.back().empty()) throw ApiError(400, "'" + field + "' is empty", field, "invalid_value");
        if (made.back().size() >= service.scheduler.context()) {
            throw ApiError(400,
                           "'" + field + "' has " + std::to_string(made.back().size()) +
                               " tokens and the context holds " + std::to_string(service.scheduler.context()),
                           field, "context_length_exceeded");
        }
    }
    return made;
}

// The answer on its way. Half of the slots at most are taken at once: whoever sends a library leaves room for others.
struct Embeddings {
    Embeddings(const ModelService& to, const EmbeddingRequest& asked)
        : service(to),
          as_base64(asked.base64),
          inputs(tokens_of(to, asked)),
          most_at_once(std::max<size_t>(1, to.scheduler.stats().slots.size() / 2)) {
        submit();  // here, so that who is sent away is told
        service.deliveries.fetch_add(1, std::memory_order_relaxed);
    }
    ~Embeddings() {
        for (const auto& work : under_way) work->cancel();
        service.deliveries.fetch_sub(1, std::memory_order_relaxed);
    }
    Embeddings(const Embeddings&) = delete;
    Embeddings& operator=(const Embeddings&) = delete;

    void submit() {
        GenerationRequest request;
        request.prompt = inputs[submitted];
        request.embeds = true;
        under_way.push_back(service.scheduler.submit(std::move(request)));
        tokens += inputs[submitted++].size();
    }

    enum class Next { kText, kNothing, kFailed };
    // What follows of the answer's text, where another embedding has come within a moment.
    Next next(std::string* text) {
        try {
            while (submitted < inputs.size() && under_way.size() < most_at_once) submit();
        } catch (const Busy&) {
            if (under_way.empty()) std::this_thread::sleep_for(kPatience);  // others are served first
        }
        GeneratedToken none;
        if (under_way.empty() || under_way.front()->next(&none, kPatience) == Generation::Next::kNothing) return Next::kNothing;
        const Generation::Outcome outcome = under_way.front()->outcome();
        if (outcome.embedding.empty()) {
            *text = outcome.error;
            return Next::kFailed;
        }
        under_way.pop_front();
        *text = made == 0 ? "{\"object\":\"list\",\"data\":[" : ",";
        *text += "{\"object\":\"embedding\",\"index\":" + std::to_string(made) + ",\"embedding\":" +
                 (as_base64 ? "\"" + base64(outcome.embedding) + "\"" : array_of(outcome.embedding)) + "}";
        if (++made == inputs.size()) {
            *text += "],\"model\":" + dump(service.name) +
                     ",\"usage\":" + dump({{"prompt_tokens", tokens}, {"total_tokens", tokens}}) + "}";
        }
        return Next::kText;
    }

    // What fails before anything is sent has a status of its own.
    void open(const httplib::Request& request) {
        for (;;) {
            switch (next(&opening)) {
                case Next::kText: return;
                case Next::kFailed: throw ApiError(500, opening);
                case Next::kNothing: break;
            }
            check_waited_for(request);
        }
    }

    // False: the client has gone, or an input cannot be computed: the answer is cut off, which every client sees.
    bool go_on(const httplib::Request& request, httplib::DataSink& sink) {
        std::string text = std::exchange(opening, {});
        const Next found = text.empty() ? next(&text) : Next::kText;
        if (found == Next::kNothing) return is_waited_for(request);
        if (found == Next::kFailed || !sink.is_writable() || !sink.write(text.data(), text.size())) return false;
        if (made == inputs.size()) sink.done();
        return true;
    }

    const ModelService& service;
    const bool as_base64;
    const std::vector<std::vector<TokenId>> inputs;
    const size_t most_at_once;
    std::deque<std::shared_ptr<Generation>> under_way;
    size_t submitted = 0, made = 0, tokens = 0;
    std::string opening;  // not sent yet
};

}  // namespace

void serve_embeddings(const ModelService& service, const httplib::Request& request, httplib::Response& response) {
    const auto embeddings = std::make_shared<Embeddings>(service, parse_embedding_request(parse_body(request.body)));
    embeddings->open(request);
    // The request outlives the response that is made for it.
    response.set_chunked_content_provider("application/json", [embeddings, &request](size_t, httplib::DataSink& sink) {
        return embeddings->go_on(request, sink);
    });
}

}  // namespace weir
