#include "runtime/cli/doctor_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/cli/format.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

size_t count(const Findings& findings, Verdict verdict) {
    return static_cast<size_t>(
        std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.verdict == verdict; }));
}

}  // namespace

const char* verdict_name(Verdict verdict) {
    switch (verdict) {
        case Verdict::kOk: return "ok";
        case Verdict::kSlower: return "slower";
        case Verdict::kNotAvailable: return "not available";
    }
    return "?";
}

std::string doctor_text(const Findings& findings) {
    std::vector<std::vector<std::string>> lines;
    for (const Finding& f : findings) {
        lines.push_back({f.check, verdict_name(f.verdict), printable(f.found, SIZE_MAX)});
        if (!f.mend.empty()) lines.push_back({"", "", "-> " + printable(f.mend, SIZE_MAX)});
    }
    return format_table(lines, "lll") + "\n" + std::to_string(count(findings, Verdict::kOk)) + " ok, " +
           std::to_string(count(findings, Verdict::kSlower)) + " slower, " +
           std::to_string(count(findings, Verdict::kNotAvailable)) + " not available\n";
}

std::string doctor_json(const Findings& findings) {
    Json checks = Json::array();
    for (const Finding& f : findings) {
        Json check = {{"check", f.check}, {"verdict", verdict_name(f.verdict)}, {"found", f.found},
                      {"mend", f.mend.empty() ? Json(nullptr) : Json(f.mend)}, {"needed", f.needed}};
        Json& values = check["values"] = Json::object();
        for (const auto& [key, value] : f.values)
            values[key] = std::visit([](const auto& held) { return Json(held); }, value);
        checks.push_back(std::move(check));
    }
    const Json out = {{"checks", std::move(checks)},
                      {"ok", count(findings, Verdict::kOk)},
                      {"slower", count(findings, Verdict::kSlower)},
                      {"not_available", count(findings, Verdict::kNotAvailable)}};
    return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
