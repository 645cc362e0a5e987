#include "lockstep/data/format/file_error.h"

#include <fcntl.h>

#include <cerrno>
#include <system_error>

#include "lockstep/data/errors.h"

namespace lockstep::data {

void throw_file_error(const std::string& action, const std::string& path, int error_number) {
  ErrorText text{.what = str("cannot ", action, ' ', path), .seen = std::system_category().message(error_number)};
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      text.help = "check the name; a relative one starts at the working directory";
      throw NotFound(errors::kFile, std::move(text));
    case ENOSPC:
    case EDQUOT:
      text.help = "free some space on the disk, or write to a different one";
      throw ResourceExhausted(errors::kFile, std::move(text));
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      text.help = "read fewer files at a time, or raise the limits that `ulimit -a` shows";
      throw ResourceExhausted(errors::kFile, std::move(text));
    default:
      text.help = "check that it is a file of the kind that is expected, and its permissions";
      throw FailedPrecondition(errors::kFile, std::move(text));
  }
}

Descriptor open_file(const std::string& action, const std::string& path, int flags) {
  Descriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  if (!file) throw_file_error(action, path, errno);
  return file;
}

std::string record_place(std::uint64_t record, std::uint64_t offset, const std::string& path) {
  return str("record ", record, " at byte ", offset, " of ", path);
}

namespace {

void append_hex(std::string& out, char byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  out += kDigits[value >> 4];
  out += kDigits[value & 15];
}

}  // namespace

std::string hex_bytes(std::string_view bytes, std::size_t at_most) {
  std::string out;
  for (const char byte : bytes.substr(0, at_most)) append_hex(out, byte);
  if (bytes.size() > at_most) out += "...";
  return out;
}

std::string in_quotes(std::string_view text, std::size_t at_most) {
  std::string out = "'";
  for (const char c : text.substr(0, at_most)) {
    if (c >= ' ' && c != '\x7f') {
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += "\\x";
      append_hex(out, c);
    }
  }
  if (text.size() > at_most) out += "...";
  return out + "'";
}

}  // namespace lockstep::data
