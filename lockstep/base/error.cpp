#include "lockstep/base/error.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/base/vocabulary.h"

namespace lockstep {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::InvalidArgument: return "INVALID_ARGUMENT";
    case Code::FailedPrecondition: return "FAILED_PRECONDITION";
    case Code::OutOfRange: return "OUT_OF_RANGE";
    case Code::NotFound: return "NOT_FOUND";
    case Code::AlreadyExists: return "ALREADY_EXISTS";
    case Code::Unavailable: return "UNAVAILABLE";
    case Code::DeadlineExceeded: return "DEADLINE_EXCEEDED";
    case Code::DataLoss: return "DATA_LOSS";
    case Code::ResourceExhausted: return "RESOURCE_EXHAUSTED";
    case Code::Cancelled: return "CANCELLED";
    case Code::Unimplemented: return "UNIMPLEMENTED";
    case Code::Internal: return "INTERNAL";
  }
  return "UNKNOWN";
}

void throw_error(Code code, int number, ErrorText text) {
  switch (code) {
    case Code::InvalidArgument: throw InvalidArgument(number, std::move(text));
    case Code::FailedPrecondition: throw FailedPrecondition(number, std::move(text));
    case Code::OutOfRange: throw OutOfRange(number, std::move(text));
    case Code::NotFound: throw NotFound(number, std::move(text));
    case Code::AlreadyExists: throw AlreadyExists(number, std::move(text));
    case Code::Unavailable: throw Unavailable(number, std::move(text));
    case Code::DeadlineExceeded: throw DeadlineExceeded(number, std::move(text));
    case Code::DataLoss: throw DataLoss(number, std::move(text));
    case Code::ResourceExhausted: throw ResourceExhausted(number, std::move(text));
    case Code::Cancelled: throw Cancelled(number, std::move(text));
    case Code::Unimplemented: throw Unimplemented(number, std::move(text));
    case Code::Internal: break;
  }
  throw Internal(number, std::move(text));
}

void throw_error(const Error& error) {
  const VocabularyScope as_it_is({});
  throw_error(error.code(), error.number(), error.text());
}

std::string to_bytes(const Error& error, std::size_t most) {
  const ErrorText& text = error.text();
  std::string bytes = str(static_cast<int>(error.code()), '\0', error.number());
  for (std::string part : {text.what, text.where, text.help, text.seen}) {
    std::ranges::replace(part, '\0', '?');  // a zero begins the next part
    bytes += '\0' + part;
  }
  return bytes.substr(0, most);
}

Error error_from(const std::string& bytes) {
  std::istringstream in(bytes);
  std::array<std::string, 6> parts;
  for (std::string& part : parts) std::getline(in, part, '\0');
  const auto& [code, number, what, where, help, seen] = parts;
  const auto number_in = [](const std::string& digits) {
    return static_cast<int>(std::strtol(digits.c_str(), nullptr, 10));
  };
  const VocabularyScope as_it_is({});  // its words were chosen when it was made
  return {static_cast<Code>(number_in(code)), number_in(number), {what, where, seen, help}};
}

Error::Error(Code code, int number, ErrorText text) : code_(code), number_(number), text_(std::move(text)) {
  const bool is_own = !explain(number).empty();  // otherwise it is the program's, in its own words
  for (std::string* part : {&text_.what, &text_.where, &text_.seen, &text_.help})
    if (is_own) *part = in_words_here(std::move(*part));
  format();
}

void Error::add_where(const std::string& place) {
  text_.where += (text_.where.empty() ? "" : ", ") + in_words_here(place);
  format();
}

void Error::format() {
  message_ = str("error[L", number_, "]: ", text_.what);
  const std::array<std::pair<const char*, const std::string*>, 3> parts{
      {{"where: ", &text_.where}, {"seen:  ", &text_.seen}, {"help:  ", &text_.help}}};
  for (const auto& [label, part] : parts) {
    if (!part->empty()) message_ += str("\n  ", label, *part);
  }
}

}  // namespace lockstep
