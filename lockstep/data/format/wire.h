#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/data/format/example.h"

namespace lockstep::data::wire {

/// How a field's value is encoded.
enum class Type : std::uint32_t { Varint = 0, Fixed64 = 1, Bytes = 2, GroupStart = 3, GroupEnd = 4, Fixed32 = 5 };

struct Tag {
  std::uint32_t field = 0;
  Type type = Type::Varint;
};

/// Reads a message in protobuf's wire format. Every length is checked against the available bytes; malformed input
/// throws DataLoss with the byte offset in the whole record.
class Reader {
 public:
  /// `message` is a part of `record`; offsets count from the start of `record`.
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

  /// The bytes of a number of a fixed size.
  std::string_view raw(std::size_t size) {
    if (left() < size) fail("a number goes past the end");
    const std::string_view view(at_, size);
    at_ += size;
    return view;
  }

  /// Skips the value of an unknown field.
  void skip(Tag tag);

  [[noreturn, gnu::cold]] void fail(std::string_view what) const;  // a view: inlined callers stay small

 private:
  std::uint64_t long_varint();
  void skip_group(std::uint32_t field);

  const char* at_;
  const char* end_;
  const char* record_;
};

void append_varint(std::string& out, std::uint64_t value);
void append_tag(std::string& out, std::uint32_t field, Type type);

/// The list in a Feature; none if it was not set.
struct FeatureList {
  std::optional<FeatureType> type;
  std::string_view list;  // the bytes of BytesList, FloatList or Int64List
};

FeatureList read_feature(std::string_view feature, std::string_view record);

/// Calls `use(reader, tag)` for every field numbered up to `last`: all that matter in an Example.
template <class Use>
void for_each_field(std::string_view message, std::string_view record, std::uint32_t last, Use&& use) {
  Reader reader(message, record);
  while (!reader.done()) {
    const Tag tag = reader.tag();
    if (tag.field <= last) {
      use(reader, tag);
    } else {
      reader.skip(tag);
    }
  }
}

/// Calls `use(name, feature)` for every entry of the record's features, in order; `feature` is an encoded Feature.
template <class Use>
void for_each_feature(std::string_view record, Use&& use) {
  for_each_field(record, record, 1, [&](Reader& example, Tag outer) {
    if (outer.type != Type::Bytes) example.fail("its features are not a message");
    for_each_field(example.bytes(), record, 1, [&](Reader& features, Tag inner) {
      if (inner.type != Type::Bytes) features.fail("a feature is not a message");
      // An encoder writes each of these fields once. Repeated ones would have to be merged by protobuf's rules; no real
      // encoder writes them, so they count as damage.
      std::array<std::optional<std::string_view>, 2> entry;
      for_each_field(features.bytes(), record, 2, [&](Reader& reader, Tag tag) {
        if (tag.type != Type::Bytes) reader.fail("a feature has no name or no message");
        auto& part = entry[tag.field - 1];
        if (part) reader.fail("a feature has two names or two messages");
        part = reader.bytes();
      });
      use(entry[0].value_or(""), entry[1].value_or(""));
    });
  });
}

/// Writes the values of a list, packed or not, to the memory that `room(count)` returns. Floats are copied in runs,
/// which is many times faster.
template <class T, class Room>
void read_values(std::string_view list, std::string_view record, Room&& room) {
  for_each_field(list, record, 1, [&](Reader& reader, Tag tag) {
    const bool is_bytes = tag.type == Type::Bytes;
    if constexpr (std::is_same_v<T, float>) {
      if (!is_bytes && tag.type != Type::Fixed32) reader.fail("a float list holds something else");
      const std::string_view run = is_bytes ? reader.bytes() : reader.raw(sizeof(float));
      if (run.size() % sizeof(float) != 0) reader.fail("packed floats end inside a number");
      float* to = room(run.size() / sizeof(float));
      if (!run.empty()) std::memcpy(to, run.data(), run.size());
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      if (!is_bytes && tag.type != Type::Varint) reader.fail("an int64 list holds something else");
      if (!is_bytes) *room(1) = static_cast<std::int64_t>(reader.varint());
      Reader packed(is_bytes ? reader.bytes() : std::string_view(), record);
      while (!packed.done()) *room(1) = static_cast<std::int64_t>(packed.varint());
    } else {
      if (!is_bytes) reader.fail("a bytes list holds something else");
      *room(1) = reader.bytes();
    }
  });
}

/// Appends the values of a list to `values` and returns how many there were.
template <class T>
std::int64_t append_values(std::string_view list, std::string_view record, std::vector<T>& values) {
  const std::size_t before = values.size();
  read_values<T>(list, record, [&](std::size_t count) {
    if (count == 1) return &values.emplace_back();
    values.resize(values.size() + count);
    return values.data() + (values.size() - count);
  });
  return static_cast<std::int64_t>(values.size() - before);
}

}  // namespace lockstep::data::wire
