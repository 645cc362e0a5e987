#include "tests/golden/outcome.h"

#include <c10/util/Exception.h>

#include <map>

#include "lockstep/base/text.h"
#include "tests/golden/json_value.h"

namespace lockstep::golden {
namespace {

constexpr const char* kDeliberate = "deliberate failure";

/// The kind of error that corresponds to an exception of TensorFlow's.
std::string kind_of(const std::string& exception) {
  static const std::map<std::string, std::string> kKinds = {
      {"ValueError", "INVALID_ARGUMENT"},
      {"TypeError", "INVALID_ARGUMENT"},
      {"AssertionError", "INVALID_ARGUMENT"},
      {"AttributeError", "INVALID_ARGUMENT"},
      {"IndexError", "INVALID_ARGUMENT"},
      {"KeyError", "INVALID_ARGUMENT"},
      {"InvalidArgumentError", "INVALID_ARGUMENT"},
      {"RuntimeError", "FAILED_PRECONDITION"},
      {"FailedPreconditionError", "FAILED_PRECONDITION"},
      {"NotImplementedError", "UNIMPLEMENTED"},
      {"UnimplementedError", "UNIMPLEMENTED"},
      {"OutOfRangeError", "OUT_OF_RANGE"},
      {"StopIteration", "OUT_OF_RANGE"},
      {"NotFoundError", "NOT_FOUND"},
      {"AlreadyExistsError", "ALREADY_EXISTS"},
      {"UnavailableError", "UNAVAILABLE"},
      {"DeadlineExceededError", "DEADLINE_EXCEEDED"},
      {"DataLossError", "DATA_LOSS"},
      {"ResourceExhaustedError", "RESOURCE_EXHAUSTED"},
      {"CancelledError", "CANCELLED"},
      {"InternalError", "INTERNAL"},
      {"ZeroDivisionError", kDeliberate},
  };
  const auto found = kKinds.find(exception);
  if (found == kKinds.end()) unknown_value("kind of error", exception);
  return found->second;
}

json error(std::string_view kind, const char* text) { return {{"error", kind}, {"text", text}}; }

}  // namespace

json current_error() {
  try {
    throw;
  } catch (const UnknownForm&) {
    throw;
  } catch (const Error& thrown) {
    return error(to_string(thrown.code()), thrown.what());
  } catch (const DeliberateFailure& thrown) {
    return error(kDeliberate, thrown.what());
  } catch (const c10::Error& thrown) {
    return error("an error of LibTorch", thrown.what_without_backtrace());
  } catch (const std::exception& thrown) {
    return error("an exception without a kind", thrown.what());
  }
}

std::optional<std::string> error_difference(const json& expected, const json& got, const std::string& path) {
  const std::string place = path.empty() ? "the call" : path;
  const std::string wanted = str(kind_of(expected.at("error")), " (", expected.at("error").get<std::string>(), ": ...",
                                 expected.value("fragment", ""), "...)");
  if (!got.is_object() || !got.contains("error")) return str(place, ": expected ", wanted, ", got ", brief(got));
  if (got.at("error") != kind_of(expected.at("error"))) {
    return str(place, ": expected ", wanted, ", got ", got.at("error").get<std::string>(), ":\n",
               got.at("text").get<std::string>());
  }
  json expected_state = expected, state = got;
  for (const char* key : {"error", "fragment", "text"}) {
    expected_state.erase(key);
    state.erase(key);
  }
  return difference(expected_state, state, path);
}

}  // namespace lockstep::golden
