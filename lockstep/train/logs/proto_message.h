#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/data/format/wire.h"

namespace lockstep::train::detail {

/// Builds a message in protobuf's wire format, field by field. Fields without presence leave out zero, as protobuf does.
///
///     ProtoMessage().text(1, "loss").present(2, 0.5F).bytes()
class ProtoMessage {
 public:
  ProtoMessage& integer(std::uint32_t field, std::int64_t value) {
    if (value != 0) {
      data::wire::append_tag(bytes_, field, data::wire::Type::Varint);
      data::wire::append_varint(bytes_, static_cast<std::uint64_t>(value));
    }
    return *this;
  }
  ProtoMessage& number(std::uint32_t field, double value) {
    return std::bit_cast<std::uint64_t>(value) == 0 ? *this : present(field, value);
  }
  ProtoMessage& text(std::uint32_t field, std::string_view value) { return value.empty() ? *this : part(field, value); }
  /// A packed list.
  ProtoMessage& numbers(std::uint32_t field, std::span<const double> values) {
    return text(field, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }

  // With presence: members of a oneof, and messages.
  ProtoMessage& part(std::uint32_t field, std::string_view bytes) {
    data::wire::append_tag(bytes_, field, data::wire::Type::Bytes);
    data::wire::append_varint(bytes_, bytes.size());
    bytes_ += bytes;
    return *this;
  }
  ProtoMessage& part(std::uint32_t field, const ProtoMessage& message) { return part(field, message.bytes()); }
  ProtoMessage& present(std::uint32_t field, float value) { return fixed(field, data::wire::Type::Fixed32, value); }
  ProtoMessage& present(std::uint32_t field, double value) { return fixed(field, data::wire::Type::Fixed64, value); }
  ProtoMessage& present(std::uint32_t field, bool value) {
    data::wire::append_tag(bytes_, field, data::wire::Type::Varint);
    bytes_ += value ? '\1' : '\0';
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  template <class T>
  ProtoMessage& fixed(std::uint32_t field, data::wire::Type type, T value) {
    data::wire::append_tag(bytes_, field, type);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);  // protobuf is little endian, as this machine
    return *this;
  }

  std::string bytes_;
};

}  // namespace lockstep::train::detail
