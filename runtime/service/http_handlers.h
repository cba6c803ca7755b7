// Handlers of the server's endpoints, for http_server.cc alone: it pulls in httplib.
#pragma once

#include <httplib.h>

#include "runtime/service/model_service.h"

namespace weir {

void serve_chat(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_completion(const ModelService& service, const httplib::Request& request, httplib::Response& response);

void serve_embeddings(const ModelService& service, const httplib::Request& request, httplib::Response& response);

void serve_models(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_props(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_slots(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_metrics(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_tokenize(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_detokenize(const ModelService& service, const httplib::Request& request, httplib::Response& response);
void serve_apply_template(const ModelService& service, const httplib::Request& request, httplib::Response& response);

}  // namespace weir
