#include "lockstep/base/tune_request.h"

#include <locale>
#include <sstream>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

std::string to_text(const TuneRequest& request) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << request.replicas << ',' << request.seconds << ',' << request.report;
  return std::move(out).str();
}

std::optional<TuneRequest> parse_tune_request(std::string_view text) {
  std::istringstream in{std::string(text)};
  in.imbue(std::locale::classic());  // the program may have set another
  TuneRequest request;
  char first = 0, second = 0;
  in >> request.replicas >> first >> request.seconds >> second;
  if (!in || first != ',' || second != ',' || request.replicas < 1 || !(request.seconds > 0)) return std::nullopt;
  std::getline(in, request.report, '\0');
  if (request.report.empty()) return std::nullopt;
  return request;
}

const TuneRequest* tune_request() {
  static const std::optional<TuneRequest> request = []() -> std::optional<TuneRequest> {
    const std::string text = environment_variable("LOCKSTEP_TUNE");
    if (text.empty()) return std::nullopt;
    if (auto parsed = parse_tune_request(text)) return parsed;
    throw InvalidArgument(errors::kBadOption,
                          {.what = "LOCKSTEP_TUNE cannot be read",
                           .seen = str("'", text, "'"),
                           .help = "unset it: `lockstep tune` sets it for the programs it measures"});
  }();
  return request ? &*request : nullptr;
}

}  // namespace lockstep
