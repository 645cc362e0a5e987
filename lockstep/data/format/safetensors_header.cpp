#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "lockstep/data/errors.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/format/listed.h"
#include "lockstep/data/format/mapped_file.h"
#include "lockstep/data/format/safetensors.h"

// Reading and writing the header of a safetensors file: the only code that handles JSON.
namespace lockstep::data {
namespace {

constexpr std::size_t kHeaderAlignment = 8;
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kLengthBytes = 8;  // size of the header's length
/// Python's own limit.
constexpr std::uint64_t kLongestHeaderText = 100'000'000;
constexpr std::size_t kMostExtents = 64;

[[noreturn]] void damaged(const std::string& path, const std::string& what, std::string seen = {}) {
  throw DataLoss(errors::kSafetensors,
                 {.what = str(path, " is a damaged safetensors file: ", what),
                  .where = str("header of ", path),
                  .seen = std::move(seen),
                  .help = "use another copy of the file, or save it again with ls::save or Python's safetensors"});
}

/// Files of torch::save, from C++ or Python, are most often mistaken for safetensors files.
void require_not_of_torch(std::string_view file, const std::string& path) {
  const bool is_zip = file.starts_with("PK\3\4");
  const bool is_pickle = file.starts_with("\x80\x02");
  if (!is_zip && !is_pickle) return;
  throw InvalidArgument(
      errors::kSafetensors,
      {.what =
           str(path, is_zip ? " is a zip archive, as torch::save writes them" : " is a pickle, as old torch.save wrote",
               ", and not a safetensors file"),
       .where = str("header of ", path),
       .help = str(is_zip ? "a file of C++: torch::load(plain, path) into a plain module, and copy its tensors in "
                            "model.update, as docs/saving.md shows; a file of Python: "
                          : "",
                   "convert it in Python, safetensors.torch.save_file(torch.load(path), new_path)")});
}

using Json = nlohmann::json;

std::string kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::boolean: return "true or false";
    case Json::value_t::number_integer: return "a negative number";
    case Json::value_t::number_unsigned: return "a number";
    case Json::value_t::number_float: return str("the number ", data::in_quotes(value.dump()));
    default: return "a text";
  }
}

/// Receives the header piece by piece. Stores only what the format defines, so neither deep nesting nor strange values
/// cost memory.
class HeaderReader {
 public:
  HeaderReader(SafetensorsHeader& header, const std::string& path) : header_(header), path_(path) {}

  /// Handles a parser event at a depth: 1 is a tensor or the metadata, 2 one of its fields, 3 a number in a list.
  /// Returns whether the parser should continue with it; the parser stores no values.
  bool take(int depth, Json::parse_event_t event, const Json& met) {
    using Event = Json::parse_event_t;
    switch (event) {
      case Event::object_start:
        if (depth > 1) wrong_value(depth, "an object");
        return true;
      case Event::array_start:
        if (depth != 2 || in_metadata() || field_ == kType) wrong_value(depth, "a list");
        numbers_.clear();
        return true;
      case Event::key: take_key(depth, met.get_ref<const std::string&>()); return true;
      case Event::value: take_value(depth, met); return false;
      case Event::array_end: take_numbers(); return false;
      case Event::object_end:
        if (depth == 1 && !in_metadata()) take_tensor();
        return false;
    }
    return false;
  }

 private:
  static constexpr std::string_view kType = "dtype", kShape = "shape", kOffsets = "data_offsets";

  bool in_metadata() const { return tensor_.name == kMetadata; }
  std::string of_tensor() const { return str("tensor ", data::in_quotes(tensor_.name, 200)); }

  void take_key(int depth, const std::string& text) {
    if (depth == 1) {
      tensor_ = {.name = text};
      fields_ = {};  // clearing takes time proportional to the largest size so far
      if (!names_.insert(text).second)
        damaged(path_,
                in_metadata() ? "it has __metadata__ twice" : str("tensor ", data::in_quotes(text), " comes twice"));
      return;
    }
    field_ = text;
    if (!in_metadata() && text != kType && text != kShape && text != kOffsets)
      damaged(path_, str(of_tensor(), " has an unknown field ", data::in_quotes(text)));
    if (!fields_.insert(text).second)
      damaged(path_, in_metadata() ? str("metadata ", data::in_quotes(text), " comes twice")
                                   : str(of_tensor(), " has ", text, " twice"));
  }

  void take_value(int depth, const Json& value) {
    if (depth == 3 && value.is_number_unsigned()) return take_number(value.get<std::uint64_t>());
    if (depth != 2 || !value.is_string() || !(in_metadata() || field_ == kType)) wrong_value(depth, kind_of(value));
    const auto& text = value.get_ref<const std::string&>();
    if (in_metadata()) {
      header_.metadata[field_] = text;
      return;
    }
    const auto type = safetensors_type_named(text);
    if (!type) {
      throw Unimplemented(
          errors::kSafetensors,
          {.what = str(of_tensor(), " has element type ", data::in_quotes(text), ", which Lockstep does not read"),
           .where = str("header of ", path_),
           .help = "convert it in Python before saving: tensor.to(torch.float32)"});
    }
    tensor_.type = *type;
  }

  void take_number(std::uint64_t number) {
    const bool is_shape = field_ == kShape;
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      damaged(path_, str(of_tensor(), " has a number above 2^63 - 1"));
    if (numbers_.size() == (is_shape ? kMostExtents : 2))
      damaged(path_, str(of_tensor(), " has more than ", is_shape ? "64 dimensions" : "two data_offsets"));
    numbers_.push_back(static_cast<std::int64_t>(number));
  }

  void take_numbers() {
    if (field_ == kShape) {
      tensor_.shape = numbers_;
      return;
    }
    if (numbers_.size() != 2) damaged(path_, str(of_tensor(), " has fewer than two data_offsets"));
    tensor_.begin = static_cast<std::uint64_t>(numbers_[0]);
    tensor_.end = static_cast<std::uint64_t>(numbers_[1]);
  }

  void take_tensor() {
    if (fields_.size() < 3) damaged(path_, str(of_tensor(), " lacks dtype, shape or data_offsets"));
    header_.tensors.push_back(std::move(tensor_));
  }

  [[noreturn]] void wrong_value(int depth, const std::string& found) const {
    if (depth == 1)
      damaged(path_, str(in_metadata() ? "its __metadata__" : of_tensor(), " is ", found, " and not an object"));
    if (in_metadata()) damaged(path_, str("its metadata ", data::in_quotes(field_), " is ", found, " and not a text"));
    if (depth == 2) damaged(path_, str("the ", field_, " of ", of_tensor(), " is ", found));
    damaged(path_, str("a list of ", of_tensor(), " holds ", found));
  }

  SafetensorsHeader& header_;
  const std::string& path_;
  std::unordered_set<std::string> names_;
  SafetensorsEntry tensor_;  ///< being read; the metadata is recognized by its name
  std::unordered_set<std::string> fields_;
  std::string field_;
  std::vector<std::int64_t> numbers_;
};

void read_header(std::string_view text, SafetensorsHeader& header, const std::string& path) {
  HeaderReader reader(header, path);
  try {
    std::ignore = Json::parse(text.begin(), text.end(), [&](int depth, Json::parse_event_t event, const Json& met) {
      return reader.take(depth, event, met);
    });
  } catch (const Json::parse_error& error) {
    damaged(path, str("its header is not valid JSON at byte ", kLengthBytes + error.byte),
            data::in_quotes(text.substr(std::min(error.byte, text.size()) - 1)));
  } catch (const Json::out_of_range&) {
    damaged(path, "its header holds a number that is out of range");
  }
}

/// Every byte of the data belongs to exactly one tensor.
void require_exact_layout(const SafetensorsHeader& header, std::uint64_t data_size, const std::string& path) {
  std::uint64_t next = 0;
  for (const SafetensorsEntry& tensor : header.tensors) {
    const auto name = data::in_quotes(tensor.name, 200);
    const auto bytes = array_bytes(tensor.shape, item_size(tensor.type));
    if (!bytes)
      damaged(path, str("tensor ", name, " is larger than any file"), describe(to_string(tensor.type), tensor.shape));
    const std::string seen = str(describe(to_string(tensor.type), tensor.shape), " needs ", *bytes,
                                 " bytes, data_offsets are ", tensor.begin, " to ", tensor.end);
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != *bytes)
      damaged(path, str("the data_offsets of tensor ", name, " do not fit its shape"), seen);
    if (tensor.begin < next) damaged(path, str("tensor ", name, " overlaps the one before it"), seen);
    if (tensor.begin > next) damaged(path, str("a gap lies before tensor ", name), seen);
    next = tensor.end;
  }
  if (next == data_size) return;
  damaged(path, next > data_size ? "it is cut off" : "bytes follow its tensors",
          str("tensors need ", next, " bytes, the file has ", data_size));
}

[[noreturn]] void refuse_name(const std::string& name, const char* why) {
  throw InvalidArgument(errors::kSafetensors, {.what = str("the name ", data::in_quotes(name, 200), ' ', why),
                                               .where = "writing a safetensors file",
                                               .help = "give every tensor a name of its own, as text in UTF-8"});
}

std::string json_text(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    refuse_name(text, "is not valid UTF-8");
  }
}

}  // namespace

SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path) {
  if (file.size() < kLengthBytes) damaged(path, "it ends inside the length of its header", str(file.size(), " bytes"));
  const std::uint64_t length = little_endian(file.substr(0, kLengthBytes));
  const std::uint64_t rest = file.size() - kLengthBytes;
  if (length > rest || length > kLongestHeaderText) {
    require_not_of_torch(file, path);
    damaged(path, "its header claims to be longer than it can be",
            str("length ", length, ", the file has ", rest, " more bytes"));
  }
  const std::string_view text = file.substr(kLengthBytes, length);
  // A JSON parser would skip blanks and a byte order mark; the format allows neither.
  if (!text.starts_with('{')) damaged(path, "its header does not start with '{'", data::in_quotes(text, 16));
  // It would also take a zero byte for the end.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    damaged(path, str("its header is not valid JSON at byte ", kLengthBytes + zero), "a byte of 0");
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + length;
  read_header(text, header, path);
  std::ranges::sort(header.tensors, {}, [](const SafetensorsEntry& tensor) {
    return std::tuple<std::uint64_t, std::uint64_t, const std::string&>(tensor.begin, tensor.end, tensor.name);
  });
  require_exact_layout(header, rest - length, path);
  return header;
}

std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors, const SafetensorsMetadata& metadata) {
  std::string text = "{";
  const auto separate = [&] { text += text.ends_with('{') ? "" : ","; };
  if (!metadata.empty()) {
    text += str(json_text(std::string(kMetadata)), ":{");
    for (const auto& [key, value] : metadata) {
      separate();
      text += str(json_text(key), ':', json_text(value));
    }
    text += "}";
  }
  std::unordered_set<std::string_view> names;
  std::uint64_t begin = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.name == kMetadata) refuse_name(tensor.name, "is kept for metadata");
    if (!names.insert(tensor.name).second) refuse_name(tensor.name, "comes twice");
    const auto bytes = array_bytes(tensor.shape, item_size(tensor.type));
    if (bytes != tensor.bytes.size() || tensor.shape.size() > kMostExtents) {
      throw InvalidArgument(errors::kSafetensors,
                            {.what = str("tensor ", data::in_quotes(tensor.name, 200), " of ",
                                         describe(to_string(tensor.type), tensor.shape), " does not have ",
                                         tensor.bytes.size(), " bytes"),
                             .where = "writing a safetensors file",
                             .help = "give the bytes of all elements, and a shape of at most 64 dimensions"});
    }
    const std::uint64_t end = begin + *bytes;
    separate();
    text += str(json_text(tensor.name), ":{\"dtype\":\"", to_string(tensor.type), "\",\"shape\":[",
                listed(tensor.shape, ","), "],\"data_offsets\":[", begin, ',', end, "]}");
    begin = end;
  }
  text += "}";
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  if (text.size() > kLongestHeaderText) {
    throw InvalidArgument(
        errors::kSafetensors,
        {.what = str("a header of ", text.size(), " bytes is too long: readers take up to ", kLongestHeaderText),
         .where = "writing a safetensors file",
         .help = "write fewer tensors to one file, or give them shorter names"});
  }
  std::string header;
  for (std::size_t i = 0; i < kLengthBytes; ++i) header += static_cast<char>((text.size() >> (8 * i)) & 0xff);
  return header + text;
}

}  // namespace lockstep::data
