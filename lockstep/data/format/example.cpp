#include "lockstep/data/format/example.h"

#include <cstring>
#include <utility>

#include "lockstep/data/format/feature_wire.h"

namespace lockstep::data {

std::string_view to_string(FeatureType type) {
  switch (type) {
    case FeatureType::Bytes: return "bytes";
    case FeatureType::Float: return "float";
    case FeatureType::Int64: return "int64";
  }
  return "unknown";
}

namespace wire {

// An encoder writes each of these fields once. Several would have to be merged by protobuf's rules; no file that was
// written in good faith has them, so they are taken for damage.
FeatureEntry read_entry(std::string_view entry, std::string_view record) {
  Reader reader(entry, record);
  FeatureEntry result;
  bool has_name = false;
  bool has_feature = false;
  while (!reader.done()) {
    const Tag tag = reader.tag();
    if (tag.field > 2) {
      reader.skip(tag);
      continue;
    }
    if (tag.type != Type::Bytes) reader.fail("a feature has no name or no message");
    bool& has = tag.field == 1 ? has_name : has_feature;
    if (std::exchange(has, true)) reader.fail("a feature has two names or two messages");
    (tag.field == 1 ? result.name : result.feature) = reader.bytes();
  }
  return result;
}

FeatureList read_feature(std::string_view feature, std::string_view record) {
  Reader reader(feature, record);
  FeatureList result;
  while (!reader.done()) {
    const Tag tag = reader.tag();
    if (tag.field > 3) {
      reader.skip(tag);
      continue;
    }
    if (tag.type != Type::Bytes) reader.fail("a feature's list is no message");
    if (result.type) reader.fail("a feature has two lists");
    result = {static_cast<FeatureType>(tag.field - 1), reader.bytes()};
  }
  return result;
}

}  // namespace wire

Example read_example(std::string_view record) {
  Example example;
  wire::for_each_feature(record, [&](const wire::FeatureEntry& entry) {
    const wire::FeatureList list = wire::read_feature(entry.feature, record);
    std::string name(entry.name);
    if (!list.type) {
      example.erase(name);
      return;
    }
    FeatureValues values;
    switch (*list.type) {
      case FeatureType::Bytes: {
        auto& bytes = values.emplace<std::vector<std::string>>();
        wire::for_each_bytes(list.list, record, [&](std::string_view value) { bytes.emplace_back(value); });
        break;
      }
      case FeatureType::Float: {
        auto& floats = values.emplace<std::vector<float>>();
        wire::for_each_float_run(list.list, record, [&](std::string_view run) {
          const std::size_t before = floats.size();
          floats.resize(before + run.size() / sizeof(float));
          if (!run.empty()) std::memcpy(floats.data() + before, run.data(), run.size());
        });
        break;
      }
      case FeatureType::Int64: {
        auto& ints = values.emplace<std::vector<std::int64_t>>();
        wire::for_each_int64(list.list, record, [&](std::int64_t value) { ints.push_back(value); });
        break;
      }
    }
    example.insert_or_assign(std::move(name), std::move(values));
  });
  return example;
}

namespace {

using wire::append_tag;
using wire::append_varint;
using wire::varint_size;

std::size_t message_size(std::size_t content) { return 1 + varint_size(content) + content; }

void append_header(std::string& out, std::uint32_t field, std::size_t content) {
  append_tag(out, field, wire::Type::Bytes);
  append_varint(out, content);
}

std::size_t packed_size(const std::vector<float>& values) { return values.size() * sizeof(float); }

std::size_t packed_size(const std::vector<std::int64_t>& values) {
  std::size_t size = 0;
  for (const std::int64_t value : values) size += varint_size(static_cast<std::uint64_t>(value));
  return size;
}

void append_packed(std::string& out, const std::vector<float>& values) {
  out.append(reinterpret_cast<const char*>(values.data()), packed_size(values));
}

void append_packed(std::string& out, const std::vector<std::int64_t>& values) {
  for (const std::int64_t value : values) append_varint(out, static_cast<std::uint64_t>(value));
}

template <class T>
std::size_t list_size(const std::vector<T>& values) {
  return values.empty() ? 0 : message_size(packed_size(values));
}

std::size_t list_size(const std::vector<std::string>& values) {
  std::size_t size = 0;
  for (const std::string& value : values) size += message_size(value.size());
  return size;
}

template <class T>
void append_list(std::string& out, const std::vector<T>& values) {
  if (values.empty()) return;
  append_header(out, 1, packed_size(values));
  append_packed(out, values);
}

void append_list(std::string& out, const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    append_header(out, 1, value.size());
    out += value;
  }
}

std::size_t list_size(const FeatureValues& values) {
  return std::visit([](const auto& list) { return list_size(list); }, values);
}

std::size_t entry_size(const std::string& name, std::size_t list) {
  return message_size(name.size()) + message_size(message_size(list));
}

}  // namespace

void write_example(const Example& example, std::string& out) {
  out.clear();
  std::size_t features = 0;
  for (const auto& [name, values] : example) features += message_size(entry_size(name, list_size(values)));
  out.reserve(message_size(features));
  append_header(out, 1, features);
  for (const auto& [name, values] : example) {
    const std::size_t list = list_size(values);
    append_header(out, 1, entry_size(name, list));
    append_header(out, 1, name.size());
    out += name;
    append_header(out, 2, message_size(list));
    append_header(out, static_cast<std::uint32_t>(values.index() + 1), list);
    std::visit([&out](const auto& all) { append_list(out, all); }, values);
  }
}

std::string write_example(const Example& example) {
  std::string out;
  write_example(example, out);
  return out;
}

}  // namespace lockstep::data
