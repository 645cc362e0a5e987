#pragma once

#include <optional>
#include <string_view>

#include "lockstep/data/format/example.h"
#include "lockstep/data/format/wire.h"

namespace lockstep::data::wire {

/// One entry of an Example's map of features.
struct FeatureEntry {
  std::string_view name;
  std::string_view feature;  // the bytes of the message Feature
};

/// The list that a Feature holds; none if nothing was set.
struct FeatureList {
  std::optional<FeatureType> type;
  std::string_view list;  // the bytes of BytesList, FloatList or Int64List
};

FeatureEntry read_entry(std::string_view entry, std::string_view record);
FeatureList read_feature(std::string_view feature, std::string_view record);

/// The values of a list are its field 1, packed or not. Each goes to `use(value)`; floats go to `use(bytes)` in runs,
/// as they lie in the record.
template <class Use>
void for_each_bytes(std::string_view list, std::string_view record, Use&& use) {
  Reader reader(list, record);
  while (!reader.done()) {
    const Tag tag = reader.tag();
    if (tag.field != 1) {
      reader.skip(tag);
    } else if (tag.type == Type::Bytes) {
      use(reader.bytes());
    } else {
      reader.fail("a bytes list holds something else");
    }
  }
}

template <class Use>
void for_each_float_run(std::string_view list, std::string_view record, Use&& use) {
  Reader reader(list, record);
  while (!reader.done()) {
    const Tag tag = reader.tag();
    if (tag.field != 1) {
      reader.skip(tag);
    } else if (tag.type == Type::Bytes) {
      const std::string_view packed = reader.bytes();
      if (packed.size() % sizeof(float) != 0) reader.fail("packed floats end inside of a number");
      use(packed);
    } else if (tag.type == Type::Fixed32) {
      use(reader.raw(sizeof(float)));
    } else {
      reader.fail("a float list holds something else");
    }
  }
}

template <class Use>
void for_each_int64(std::string_view list, std::string_view record, Use&& use) {
  Reader reader(list, record);
  while (!reader.done()) {
    const Tag tag = reader.tag();
    if (tag.field != 1) {
      reader.skip(tag);
    } else if (tag.type == Type::Bytes) {
      Reader packed(reader.bytes(), record);
      while (!packed.done()) use(static_cast<std::int64_t>(packed.varint()));
    } else if (tag.type == Type::Varint) {
      use(static_cast<std::int64_t>(reader.varint()));
    } else {
      reader.fail("an int64 list holds something else");
    }
  }
}

/// Calls `use(FeatureEntry)` for every entry of the record's features, in the order of the record.
template <class Use>
void for_each_feature(std::string_view record, Use&& use) {
  Reader example(record, record);
  while (!example.done()) {
    const Tag outer = example.tag();
    if (outer.field != 1) {
      example.skip(outer);
      continue;
    }
    if (outer.type != Type::Bytes) example.fail("its features are no message");
    Reader features(example.bytes(), record);
    while (!features.done()) {
      const Tag inner = features.tag();
      if (inner.field != 1) {
        features.skip(inner);
        continue;
      }
      if (inner.type != Type::Bytes) features.fail("a feature is no message");
      use(read_entry(features.bytes(), record));
    }
  }
}

}  // namespace lockstep::data::wire
