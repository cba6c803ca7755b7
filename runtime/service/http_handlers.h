// Handlers of the server's endpoints, for http_server.cc alone: it pulls in httplib.
#pragma once

#include <httplib.h>

#include "runtime/service/model_service.h"

namespace weir {

// Whether it makes sense to go on with an answer: the client is there, and the server does not end. Of a request as the server
// hands it to handlers; httplib leaves this field of its to clients.
inline bool is_waited_for(const httplib::Request& request) { return !request.progress || request.progress(0, 0); }

// For who waits before anything is sent: the client, if it is there, may ask another server at once.
inline void check_waited_for(const httplib::Request& request) {
    constexpr unsigned kRetry_s = 5;
    if (!is_waited_for(request)) throw Busy("the server is shutting down", kRetry_s);
}

void serve_chat(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_completion(const ModelService& service, const httplib::Request& request, httplib::Response& response);

// The page itself, which needs no model.
void serve_dashboard_page(const httplib::Request& request, httplib::Response& response);

void serve_embeddings(const ModelService& service, const httplib::Request& request, httplib::Response& response);

void serve_models(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_props(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_slots(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_metrics(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_dashboard_map(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_dashboard_data(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_tokenize(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_detokenize(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_apply_template(const ModelService& service, const httplib::Request& request, httplib::Response& response);

}  // namespace weir
