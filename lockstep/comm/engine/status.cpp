#include "lockstep/comm/engine/status.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "lockstep/base/throw_error.h"

namespace lockstep::engine {
namespace {

template <std::size_t size>
void copy_text(char (&to)[size], std::string_view from) {
  const std::size_t count = std::min(from.size(), size - 1);
  std::memcpy(to, from.data(), count);
  std::memset(to + count, 0, size - count);
  // A text that had to be cut says so.
  if (count < from.size()) std::memcpy(to + size - 4, "...", 3);
}

template <std::size_t size>
std::string text_of(const char (&from)[size]) {
  return std::string(from, ::strnlen(from, size));
}

}  // namespace

lockstep_status make_status(Code code, int number, const ErrorText& text, int peer) {
  lockstep_status status{};
  status.code = 1 + static_cast<int>(code);
  status.number = number;
  status.peer = peer;
  copy_text(status.what, text.what);
  copy_text(status.where, text.where);
  copy_text(status.seen, text.seen);
  copy_text(status.help, text.help);
  return status;
}

lockstep_status status_of_exception() noexcept {
  lockstep_status status{};
  status.code = 1 + static_cast<int>(Code::Internal);
  status.number = errors::kInternal;
  status.peer = -1;
  try {
    throw;
  } catch (const Failure& failure) {
    return failure.status();
  } catch (const Error& error) {
    try {
      return make_status(error.code(), error.number(), error.text());
    } catch (...) {
      copy_text(status.what, "out of memory while an error was reported");
    }
  } catch (const std::bad_alloc&) {
    status.code = 1 + static_cast<int>(Code::ResourceExhausted);
    copy_text(status.what, "out of memory in the data engine");
    copy_text(status.help, "use smaller buckets (bytes_per_pack) or fewer workers per machine");
  } catch (const std::exception& error) {
    copy_text(status.what, error.what());
    copy_text(status.help, "this is a bug in Lockstep: please report it");
  } catch (...) {
    copy_text(status.what, "an unknown exception in the data engine");
    copy_text(status.help, "this is a bug in Lockstep: please report it");
  }
  return status;
}

void throw_status(const lockstep_status& status) {
  throw_error(static_cast<Code>(status.code - 1), status.number,
              {text_of(status.what), text_of(status.where), text_of(status.seen), text_of(status.help)});
}

}  // namespace lockstep::engine
