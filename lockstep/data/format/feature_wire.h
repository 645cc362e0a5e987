#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

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

/// Calls `use(reader, tag)` wherever a message has one of the fields up to `last`: all that matter in an Example.
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

/// Calls `use(FeatureEntry)` for every entry of the record's features, in the order of the record.
template <class Use>
void for_each_feature(std::string_view record, Use&& use) {
  for_each_field(record, record, 1, [&](Reader& example, Tag outer) {
    if (outer.type != Type::Bytes) example.fail("its features are not a message");
    for_each_field(example.bytes(), record, 1, [&](Reader& features, Tag inner) {
      if (inner.type != Type::Bytes) features.fail("a feature is not a message");
      use(read_entry(features.bytes(), record));
    });
  });
}

/// Calls `use(value)` for the values of a list, packed or not. Floats come in runs, `use(bytes)`, as they lie in the
/// record: copying a run at a time is many times faster.
template <class T, class Use>
void for_each_value(std::string_view list, std::string_view record, Use&& use) {
  for_each_field(list, record, 1, [&](Reader& reader, Tag tag) {
    const Type type = tag.type;
    if constexpr (std::is_same_v<T, float>) {
      if (type == Type::Fixed32) return use(reader.raw(sizeof(float)));
      if (type != Type::Bytes) reader.fail("a float list holds something else");
      const std::string_view packed = reader.bytes();
      if (packed.size() % sizeof(float) != 0) reader.fail("packed floats end inside a number");
      use(packed);
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      if (type == Type::Varint) return use(static_cast<std::int64_t>(reader.varint()));
      if (type != Type::Bytes) reader.fail("an int64 list holds something else");
      Reader packed(reader.bytes(), record);
      while (!packed.done()) use(static_cast<std::int64_t>(packed.varint()));
    } else {
      if (type != Type::Bytes) reader.fail("a bytes list holds something else");
      use(reader.bytes());
    }
  });
}

/// Adds the values of a list to the end of `values` and returns how many there were.
template <class T>
std::int64_t append_values(std::string_view list, std::string_view record, std::vector<T>& values) {
  const std::size_t before = values.size();
  if constexpr (std::is_same_v<T, float>) {
    for_each_value<float>(list, record, [&](std::string_view run) {
      const std::size_t end = values.size();
      values.resize(end + run.size() / sizeof(float));
      if (!run.empty()) std::memcpy(values.data() + end, run.data(), run.size());
    });
  } else {
    for_each_value<T>(list, record, [&](const auto& value) { values.emplace_back(value); });
  }
  return static_cast<std::int64_t>(values.size() - before);
}

}  // namespace lockstep::data::wire
