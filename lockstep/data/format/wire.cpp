#include "lockstep/data/format/wire.h"

#include <bit>

#include "lockstep/data/errors.h"

namespace lockstep::data::wire {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in the message");

void Reader::fail(std::string_view what) const {
  throw DataLoss(errors::kExample, {.what = str("the record is not a tf.train.Example: ", what),
                                    .where = str("byte ", at_ - record_, " of the record"),
                                    .help = "check that the file holds serialized Examples"});
}

std::uint64_t Reader::long_varint() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (at_ == end_) fail("a number goes past the end");
    const auto byte = static_cast<unsigned char>(*at_++);
    if (shift == 63 && byte > 1) fail("a number has more than 64 bits");
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  fail("a number has more than 64 bits");
}

void Reader::skip(Tag tag) {
  switch (tag.type) {
    case Type::Varint: varint(); break;
    case Type::Fixed64: raw(8); break;
    case Type::Bytes: bytes(); break;
    case Type::Fixed32: raw(4); break;
    case Type::GroupStart: skip_group(tag.field); break;
    case Type::GroupEnd: fail("a group ends that did not start");
  }
}

// Without recursion: the file controls how deep groups are nested.
void Reader::skip_group(std::uint32_t field) {
  constexpr std::size_t kDeepest = 100;
  std::vector<std::uint32_t> open{field};
  while (!open.empty()) {
    const Tag tag = this->tag();
    if (tag.type == Type::GroupStart) {
      if (open.size() == kDeepest) fail("groups are nested too deeply");
      open.push_back(tag.field);
    } else if (tag.type == Type::GroupEnd) {
      if (tag.field != open.back()) fail("a group ends that did not start");
      open.pop_back();
    } else {
      skip(tag);
    }
  }
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

void append_tag(std::string& out, std::uint32_t field, Type type) {
  append_varint(out, (static_cast<std::uint64_t>(field) << 3) | static_cast<std::uint64_t>(type));
}

}  // namespace lockstep::data::wire
