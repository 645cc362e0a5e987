#include "lockstep/train/logs/event_reader.h"

#include <bit>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/data/format/wire.h"

namespace lockstep::train::detail::event {
namespace {

using data::wire::for_each_field;
using data::wire::Reader;
using data::wire::Tag;
using data::wire::Type;

template <class T>
T load(std::string_view bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// The reader, if the field has the type that the format says.
Reader& expect(Type type, Reader& reader, Tag tag) {
  if (tag.type != type) reader.fail("a field has another type than its number says");
  return reader;
}
std::string_view expect_bytes(Reader& reader, Tag tag) { return expect(Type::Bytes, reader, tag).bytes(); }
template <class T>
T expect_fixed(Reader& reader, Tag tag) {
  return load<T>(expect(sizeof(T) == 8 ? Type::Fixed64 : Type::Fixed32, reader, tag).raw(sizeof(T)));
}
std::int64_t expect_integer(Reader& reader, Tag tag) {
  return static_cast<std::int64_t>(expect(Type::Varint, reader, tag).varint());
}

/// The one number of a tensor, as TensorFlow 2 logs scalars; nothing if it is another tensor.
std::optional<double> only_number(std::string_view tensor, std::string_view record) {
  constexpr int kFloat = 1, kDouble = 2;
  std::int64_t type = 0;
  std::string_view content, list;
  for (Reader reader(tensor, record); !reader.done();) {
    const Tag tag = reader.tag();
    switch (tag.field) {
      case 1: type = expect_integer(reader, tag); break;
      case 4: content = expect_bytes(reader, tag); break;
      case 5: list = tag.type == Type::Fixed32 ? reader.raw(sizeof(float)) : expect_bytes(reader, tag); break;
      case 6: list = tag.type == Type::Fixed64 ? reader.raw(sizeof(double)) : expect_bytes(reader, tag); break;
      default: reader.skip(tag);
    }
  }
  const std::string_view bytes = content.empty() ? list : content;
  if (type == kFloat && bytes.size() == sizeof(float)) return load<float>(bytes);
  if (type == kDouble && bytes.size() == sizeof(double)) return load<double>(bytes);
  return std::nullopt;
}

std::string_view plugin_of(std::string_view metadata, std::string_view record) {
  std::string_view name;
  for_each_field(metadata, record, 1, [&](Reader& reader, Tag outer) {
    for_each_field(expect_bytes(reader, outer), record, 1,
                   [&](Reader& plugin, Tag tag) { name = expect_bytes(plugin, tag); });
  });
  return name;
}

Value read_value(std::string_view bytes, std::string_view record) {
  Value value;
  std::string_view tensor, metadata;
  for (Reader reader(bytes, record); !reader.done();) {
    const Tag tag = reader.tag();
    const auto is_of = [&](Value::Kind kind) {
      value.kind = kind;
      return expect_bytes(reader, tag);
    };
    switch (tag.field) {
      case 1: value.tag = expect_bytes(reader, tag); break;
      case 2:
        value.kind = Value::Kind::Scalar;
        value.scalar = expect_fixed<float>(reader, tag);
        break;
      case 4: is_of(Value::Kind::Image); break;
      case 5: is_of(Value::Kind::Histogram); break;
      case 8: tensor = is_of(Value::Kind::Tensor); break;
      case 9: metadata = expect_bytes(reader, tag); break;
      default: reader.skip(tag);
    }
  }
  if (value.kind != Value::Kind::Tensor) return value;
  const std::string_view plugin = plugin_of(metadata, record);
  if (plugin == "images") value.kind = Value::Kind::Image;
  if (plugin == "histograms") value.kind = Value::Kind::Histogram;
  const auto number = plugin == "scalars" ? only_number(tensor, record) : std::nullopt;
  if (number) {
    value.kind = Value::Kind::Scalar;
    value.scalar = *number;
  }
  return value;
}

bool is_start(std::string_view session, std::string_view record) {
  std::int64_t status = 0;
  for_each_field(session, record, 1, [&](Reader& reader, Tag tag) { status = expect_integer(reader, tag); });
  return status == 1;
}

Event parse(std::string_view record) {
  Event event;
  for (Reader reader(record, record); !reader.done();) {
    const Tag tag = reader.tag();
    switch (tag.field) {
      case 1: event.wall_time = expect_fixed<double>(reader, tag); break;
      case 2: event.step = expect_integer(reader, tag); break;
      case 3: event.file_version = expect_bytes(reader, tag); break;
      case 5: {
        for_each_field(expect_bytes(reader, tag), record, 1, [&](Reader& summary, Tag inner) {
          event.values.push_back(read_value(expect_bytes(summary, inner), record));
        });
        break;
      }
      case 7: event.starts_session = is_start(expect_bytes(reader, tag), record); break;
      default: reader.skip(tag);
    }
  }
  return event;
}

}  // namespace

std::string_view to_string(Value::Kind kind) {
  switch (kind) {
    case Value::Kind::Scalar: return "scalar";
    case Value::Kind::Histogram: return "histogram";
    case Value::Kind::Image: return "image";
    case Value::Kind::Tensor: return "tensor";
    case Value::Kind::Other: break;
  }
  return "other";
}

Event read_event(std::string_view record) {
  try {
    return parse(record);
  } catch (const DataLoss& error) {
    throw DataLoss(errors::kRecord, {.what = "the record is not a valid event of TensorBoard",
                                     .where = error.text().where,
                                     .help = "give the path of an event file: events.out.tfevents.*"});
  }
}

Events read_events(const std::string& path) {
  Events read;
  data::TFRecordReader reader(path);
  try {
    while (reader.next()) read.events.push_back(read_event(reader.record()));
  } catch (const DataLoss& error) {
    read.damage = error.text().what;
  }
  return read;
}

}  // namespace lockstep::train::detail::event
