// /v1/completions and /v1/chat/completions. Nothing is sent before there is something to say, not even the status: the first
// piece of a stream, all of a whole answer. What fails until then fails by its own status, and who balances among several
// servers can ask another one.
#include <utility>

#include "runtime/error.h"
#include "runtime/service/answer.h"
#include "runtime/service/api_error.h"
#include "runtime/service/http_handlers.h"
#include "runtime/service/openai_answer.h"
#include "runtime/service/openai_request.h"
#include "runtime/service/token_trie.h"
#include "runtime/service/tool_calls.h"

namespace weir {
namespace {

// Between two looks at whether the client is still there: a fraction of a token's time.
constexpr std::chrono::milliseconds kPatience{50};

std::shared_ptr<Generation> submit(const ModelService& service, std::vector<TokenId> prompt, const AnswerOptions& options) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.sampler = options.sampler;
    request.max_tokens = options.max_tokens;
    request.ignore_end = options.ignore_end;
    request.logprobs = options.logprobs;
    request.top_logprobs = options.top_logprobs;
    request.grammar = options.grammar;
    if (request.grammar != nullptr) {
        // What cannot be begun is told before anything is sent.
        try {
            Constraint(request.grammar, service.trie).mask();
        } catch (const GrammarError& error) {
            throw ApiError(400, error.what(), "response_format", "invalid_schema");
        }
    }
    try {
        return service.scheduler.submit(std::move(request));
    } catch (const Error& error) {
        throw ApiError(400, error.what(), "messages", "context_length_exceeded");
    }
}

// One answer on its way to its client. Members in the order in which they depend on each other.
struct Delivery {
    Delivery(const ModelService& service, bool chat, const AnswerOptions& options, const ToolUse& tools, std::vector<TokenId> prompt)
        : service(service), answer(submit(service, std::move(prompt), options), service.tokenizer, options.stops),
          format(chat, service.name, service.tokenizer, options.logprobs), usage(options.include_usage),
          logprobs(options.logprobs), calls(tools) {
        service.deliveries.fetch_add(1, std::memory_order_relaxed);
    }
    ~Delivery() { service.deliveries.fetch_sub(1, std::memory_order_relaxed); }
    Delivery(const Delivery&) = delete;
    Delivery& operator=(const Delivery&) = delete;

    const ModelService& service;
    Answer answer;
    AnswerFormat format;
    const bool usage;
    const bool logprobs;
    ToolCallReader calls;
    size_t called = 0;
    bool ended = false;                   // a stream of no piece
    std::string text;                     // of a stream, what is not sent yet; of a whole answer all, as what follows
    std::vector<ToolCall> made;
    std::vector<GeneratedToken> tokens;

    // Waits for the next piece. Throws what ends the answer before its status is sent.
    Generation::Next next(Answer::Piece* piece, const httplib::Request& request) {
        for (;;) {
            const Generation::Next found = answer.next(piece, kPatience);
            if (found == Generation::Next::kEnd && !answer.outcome().error.empty()) throw ApiError(500, answer.outcome().error);
            if (found != Generation::Next::kNothing) return found;
            check_waited_for(request);
        }
    }

    // The first events of a stream.
    void open(const httplib::Request& request) {
        Answer::Piece piece;
        ended = next(&piece, request) == Generation::Next::kEnd;
        text = format.opening(usage);
        if (!ended) text += events(calls.add(piece.text), std::move(piece.tokens));
    }

    // False: the client has gone, or nothing can be sent any more.
    bool stream(const httplib::Request& request, httplib::DataSink& sink) {
        if (!text.empty() && !send(sink, std::exchange(text, {}))) return false;
        Answer::Piece piece;
        switch (ended ? Generation::Next::kEnd : answer.next(&piece, kPatience)) {
            case Generation::Next::kNothing: return is_waited_for(request);
            case Generation::Next::kToken: return send(sink, events(calls.add(piece.text), std::move(piece.tokens)));
            case Generation::Next::kEnd: break;
        }
        const std::string& error = answer.outcome().error;
        const std::string rest = events(calls.finish(), {});
        const bool sent = send(sink, rest + (error.empty() ? format.closing(answer, called, usage) : "data: " + error_body(ApiError(500, error)) + "\n\n"));
        sink.done();
        return sent;
    }

    std::string events(ToolCallReader::Found found, std::vector<GeneratedToken> of) {
        std::string made;
        if (!found.text.empty() || (logprobs && !of.empty())) made = format.chunk({std::move(found.text), std::move(of)}, usage);
        for (const ToolCall& call : found.calls) made += format.call(call, called++, usage);
        return made;
    }

    void keep(ToolCallReader::Found found) {
        text += found.text;
        std::move(found.calls.begin(), found.calls.end(), std::back_inserter(made));
    }

    // All of the answer.
    std::string whole(const httplib::Request& request) {
        for (Answer::Piece piece; next(&piece, request) == Generation::Next::kToken;) {
            keep(calls.add(piece.text));
            std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(tokens));
        }
        keep(calls.finish());
        return format.whole(text, made, tokens, answer);
    }

    static bool send(httplib::DataSink& sink, const std::string& text) {
        return text.empty() || (sink.is_writable() && sink.write(text.data(), text.size()));
    }
};

void deliver(const ModelService& service, bool chat, const AnswerOptions& options, const ToolUse& tools, std::vector<TokenId> prompt,
             const httplib::Request& request, httplib::Response& response) {
    const auto delivery = std::make_shared<Delivery>(service, chat, options, tools, std::move(prompt));
    if (options.stream) {
        delivery->open(request);
        response.set_header("Cache-Control", "no-cache");
        response.set_header("X-Accel-Buffering", "no");  // nginx would keep the stream back
        // The request outlives the response that is made for it.
        response.set_chunked_content_provider("text/event-stream", [delivery, &request](size_t, httplib::DataSink& sink) {
            return delivery->stream(request, sink);
        });
        return;
    }
    const std::string text = delivery->whole(request);
    response.set_content_provider(text.size(), "application/json", [delivery, text](size_t from, size_t size, httplib::DataSink& sink) {
        return sink.write(text.data() + from, size);
    });
}

}  // namespace

void serve_chat(const ModelService& service, const httplib::Request& request, httplib::Response& response) {
    const ChatRequest asked = parse_chat_request(parse_body(request.body), service.sampler);
    if (!service.chat) throw ApiError(400, service.no_chat, "messages", "no_chat_template");
    if (!asked.conversation.tools.empty() && !service.chat->takes_tools()) {
        throw ApiError(400, "this model's chat template (" + std::string(service.chat->name()) + ") has no tools that are known here", "tools",
                       "no_tools");
    }
    std::string prompt;
    try {
        prompt = service.chat->render(asked.conversation, chat_marks(service.tokenizer));
    } catch (const Error& error) {
        throw ApiError(400, error.what(), "messages", "invalid_value");
    }
    deliver(service, true, asked.options, asked.tools, encode_chat(service.tokenizer, prompt), request, response);
}

void serve_completion(const ModelService& service, const httplib::Request& request, httplib::Response& response) {
    CompletionRequest asked = parse_completion_request(parse_body(request.body), service.sampler);
    std::vector<TokenId> ids;
    if (const std::string* const text = std::get_if<std::string>(&asked.prompt)) {
        ids = service.tokenizer.encode(*text, true, true);
    } else {
        ids = std::move(std::get<std::vector<TokenId>>(asked.prompt));
        for (const TokenId id : ids) {
            if (static_cast<size_t>(id) >= service.tokenizer.size()) {
                throw ApiError(400, "token id " + std::to_string(id) + " is not in the vocabulary", "prompt", "invalid_value");
            }
        }
    }
    if (ids.empty()) throw ApiError(400, "the prompt is empty: nothing to continue", "prompt", "invalid_value");
    deliver(service, false, asked.options, {}, std::move(ids), request, response);
}

}  // namespace weir
