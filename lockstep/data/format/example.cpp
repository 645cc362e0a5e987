#include "lockstep/data/format/example.h"

#include <array>
#include <utility>

#include "lockstep/data/format/wire.h"

namespace lockstep::data {

std::string_view to_string(FeatureType type) {
  constexpr std::array<std::string_view, 3> kNames{"bytes", "float", "int64"};
  return kNames.at(static_cast<std::size_t>(type));
}

namespace wire {

FeatureList read_feature(std::string_view feature, std::string_view record) {
  FeatureList result;
  for_each_field(feature, record, 3, [&](Reader& reader, Tag tag) {
    if (tag.type != Type::Bytes) reader.fail("a feature's list is not a message");
    if (result.type) reader.fail("a feature has two lists");
    result = {static_cast<FeatureType>(tag.field - 1), reader.bytes()};
  });
  return result;
}

}  // namespace wire

Example read_example(std::string_view record) {
  Example example;
  wire::for_each_feature(record, [&](std::string_view name, std::string_view feature) {
    const wire::FeatureList list = wire::read_feature(feature, record);
    if (!list.type) {
      example.erase(std::string(name));
      return;
    }
    FeatureValues values;
    if (*list.type == FeatureType::Float) values.emplace<std::vector<float>>();
    if (*list.type == FeatureType::Int64) values.emplace<std::vector<std::int64_t>>();
    std::visit([&](auto& all) { wire::append_values(list.list, record, all); }, values);
    example.insert_or_assign(std::string(name), std::move(values));
  });
  return example;
}

namespace {

void append_message(std::string& out, std::uint32_t field, std::string_view content) {
  wire::append_tag(out, field, wire::Type::Bytes);
  wire::append_varint(out, content.size());
  out += content;
}

void append_list(std::string& out, const std::vector<std::string>& values) {
  for (const std::string& value : values) append_message(out, 1, value);
}

void append_list(std::string& out, const std::vector<float>& values) {
  if (values.empty()) return;
  append_message(out, 1, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

void append_list(std::string& out, const std::vector<std::int64_t>& values) {
  if (values.empty()) return;
  std::string packed;
  for (const std::int64_t value : values) wire::append_varint(packed, static_cast<std::uint64_t>(value));
  append_message(out, 1, packed);
}

}  // namespace

// A message is preceded by its size, so the inner ones are written first.
std::string write_example(const Example& example) {
  std::string list, feature, entry, features;
  for (const auto& [name, values] : example) {
    for (std::string* each : {&list, &feature, &entry}) each->clear();
    std::visit([&](const auto& all) { append_list(list, all); }, values);
    append_message(feature, static_cast<std::uint32_t>(values.index() + 1), list);
    append_message(entry, 1, name);
    append_message(entry, 2, feature);
    append_message(features, 1, entry);
  }
  std::string out;
  append_message(out, 1, features);
  return out;
}

}  // namespace lockstep::data
