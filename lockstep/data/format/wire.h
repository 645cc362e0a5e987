#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data::wire {

/// How the value of a field is written.
enum class Type : std::uint32_t { Varint = 0, Fixed64 = 1, Bytes = 2, GroupStart = 3, GroupEnd = 4, Fixed32 = 5 };

struct Tag {
  std::uint32_t field = 0;
  Type type = Type::Varint;
};

/// Walks over a message in protobuf's wire format. Every length is checked against the bytes that are there; what does
/// not fit throws DataLoss with the byte of the whole record where it was met.
class Reader {
 public:
  /// `message` is a part of `record`, from whose start places are counted.
  Reader(std::string_view message, std::string_view record)
      : at_(message.data()), end_(message.data() + message.size()), record_(record.data()) {}

  bool done() const { return at_ == end_; }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  Tag tag() {
    const std::uint64_t raw = varint();
    const auto field = static_cast<std::uint32_t>(raw >> 3);
    const auto type = static_cast<std::uint32_t>(raw & 7);
    if (raw > 0xffffffffU || field == 0 || type > 5) fail("a field's tag is not valid");
    return {field, static_cast<Type>(type)};
  }

  std::uint64_t varint() {
    if (at_ != end_ && static_cast<unsigned char>(*at_) < 0x80) return static_cast<unsigned char>(*at_++);
    return long_varint();
  }

  std::string_view bytes() {
    const std::uint64_t length = varint();
    if (length > left()) fail("a length goes past the end");
    const std::string_view view(at_, static_cast<std::size_t>(length));
    at_ += length;
    return view;
  }

  /// A number of a fixed size, as it lies there.
  std::string_view raw(std::size_t size) {
    if (left() < size) fail("a number goes past the end");
    const std::string_view view(at_, size);
    at_ += size;
    return view;
  }

  /// Goes past the value of a field that the reader does not know.
  void skip(Tag tag);

  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::uint64_t long_varint();
  void skip_group(std::uint32_t field);

  const char* at_;
  const char* end_;
  const char* record_;
};

void append_varint(std::string& out, std::uint64_t value);
void append_tag(std::string& out, std::uint32_t field, Type type);

}  // namespace lockstep::data::wire
