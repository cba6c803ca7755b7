// The state of the service in Prometheus' text format: base units, counters end in _total.
#pragma once

#include <string>

#include "runtime/service/model_service.h"

namespace weir {

constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

// Any thread.
std::string metrics_text(const ModelService& service);

}  // namespace weir
