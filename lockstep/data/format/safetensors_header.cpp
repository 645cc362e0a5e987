#include <algorithm>
#include <array>
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

// The header of a safetensors file, read and written: the one place that knows JSON.
namespace lockstep::data {
namespace {

constexpr std::size_t kHeaderAlignment = 8;
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kLengthBytes = 8;  // of the header's length
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

/// What torch::save in C++ and torch.save in Python write is the usual thing to take for a safetensors file.
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

/// Receives the header piece by piece. Nothing is kept that the format does not have, so that neither deep nesting nor
/// strange values cost memory.
class HeaderReader {
 public:
  using Json = nlohmann::json;

  HeaderReader(SafetensorsHeader& header, const std::string& path) : header_(header), path_(path) {}

  bool null() { wrong_value("null"); }
  bool boolean(bool) { wrong_value("true or false"); }
  bool number_integer(Json::number_integer_t) { wrong_value("a negative number"); }
  bool number_float(Json::number_float_t, const std::string& text) {
    wrong_value(str("the number ", data::in_quotes(text)));
  }
  bool binary(Json::binary_t&) { wrong_value("binary data"); }

  bool number_unsigned(Json::number_unsigned_t value) {
    if (place_ != Place::Numbers) wrong_value("a number");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      damaged(path_, str(of_tensor(), " has a number above 2^63 - 1"));
    if (field_ == Field::Offsets) {
      if (count_ == 2) damaged(path_, str(of_tensor(), " has more than two data_offsets"));
      (count_ == 0 ? tensor_.begin : tensor_.end) = value;
    } else {
      if (count_ == kMostExtents) damaged(path_, str(of_tensor(), " has more than 64 dimensions"));
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
    }
    ++count_;
    return true;
  }

  bool string(std::string& text) {
    if (place_ == Place::MetadataText) {
      header_.metadata[key_] = std::move(text);
      place_ = Place::Metadata;
      return true;
    }
    if (place_ != Place::Value || field_ != Field::Type) wrong_value("a text");
    const auto type = safetensors_type_named(text);
    if (!type) {
      throw Unimplemented(
          errors::kSafetensors,
          {.what = str(of_tensor(), " has element type ", data::in_quotes(text), ", which Lockstep does not read"),
           .where = str("header of ", path_),
           .help = "convert it in Python before saving: tensor.to(torch.float32)"});
    }
    tensor_.type = *type;
    place_ = Place::Tensor;
    return true;
  }

  bool start_object(std::size_t) {
    switch (place_) {
      case Place::Start: place_ = Place::Root; return true;
      case Place::TensorObject: place_ = Place::Tensor; return true;
      case Place::MetadataObject: place_ = Place::Metadata; return true;
      default: wrong_value("an object");
    }
  }

  bool key(std::string& text) {
    switch (place_) {
      case Place::Root: return top_key(text);
      case Place::Tensor: return tensor_key(text);
      default:  // Metadata
        if (header_.metadata.contains(text)) damaged(path_, str("metadata ", data::in_quotes(text), " comes twice"));
        key_ = std::move(text);
        place_ = Place::MetadataText;
        return true;
    }
  }

  bool end_object() {
    if (place_ == Place::Tensor) {
      if (std::ranges::find(has_, false) != has_.end())
        damaged(path_, str(of_tensor(), " lacks dtype, shape or data_offsets"));
      header_.tensors.push_back(std::move(tensor_));
    }
    place_ = place_ == Place::Root ? Place::End : Place::Root;
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ != Place::Value || field_ == Field::Type) wrong_value("a list");
    place_ = Place::Numbers;
    count_ = 0;
    return true;
  }

  bool end_array() {
    if (field_ == Field::Offsets && count_ != 2) damaged(path_, str(of_tensor(), " has fewer than two data_offsets"));
    place_ = Place::Tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token, const Json::exception&) {
    damaged(path_, str("its header is not valid JSON at byte ", kLengthBytes + position), data::in_quotes(token));
  }

 private:
  enum class Place {
    Start,
    Root,
    TensorObject,  ///< after the name of a tensor
    Tensor,
    Value,  ///< after the name of a field
    Numbers,
    MetadataObject,
    Metadata,
    MetadataText,
    End,
  };
  enum class Field { Type, Shape, Offsets };
  static constexpr std::array<std::string_view, 3> kFields{"dtype", "shape", "data_offsets"};

  bool top_key(std::string& text) {
    if (text == kMetadata) {
      if (std::exchange(has_metadata_, true)) damaged(path_, "it has __metadata__ twice");
      place_ = Place::MetadataObject;
      return true;
    }
    if (!names_.insert(text).second) damaged(path_, str("tensor ", data::in_quotes(text), " comes twice"));
    tensor_ = {};
    tensor_.name = std::move(text);
    has_ = {};
    place_ = Place::TensorObject;
    return true;
  }

  bool tensor_key(const std::string& text) {
    const auto* found = std::ranges::find(kFields, text);
    if (found == kFields.end()) damaged(path_, str(of_tensor(), " has an unknown field ", data::in_quotes(text)));
    const auto number = static_cast<std::size_t>(found - kFields.begin());
    if (std::exchange(has_[number], true)) damaged(path_, str(of_tensor(), " has ", text, " twice"));
    field_ = static_cast<Field>(number);
    place_ = Place::Value;
    return true;
  }

  std::string of_tensor() const { return str("tensor ", data::in_quotes(tensor_.name, 200)); }

  [[noreturn]] void wrong_value(const std::string& found) const {
    switch (place_) {
      case Place::Start: damaged(path_, str("its header is ", found, " and not an object"));
      case Place::TensorObject: damaged(path_, str(of_tensor(), " is ", found, " and not an object"));
      case Place::Value:
        damaged(path_, str("the ", kFields[static_cast<std::size_t>(field_)], " of ", of_tensor(), " is ", found));
      case Place::MetadataObject: damaged(path_, str("its __metadata__ is ", found, " and not an object"));
      case Place::Numbers: damaged(path_, str("a list of ", of_tensor(), " holds ", found));
      default: damaged(path_, str("its metadata ", data::in_quotes(key_), " is ", found, " and not a text"));
    }
  }

  SafetensorsHeader& header_;
  const std::string& path_;
  Place place_ = Place::Start;
  Field field_ = Field::Type;
  std::unordered_set<std::string> names_;
  SafetensorsEntry tensor_;
  std::string key_;
  std::size_t count_ = 0;
  std::array<bool, 3> has_{};  ///< of the fields of a tensor
  bool has_metadata_ = false;
};

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
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
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
  // A parser of JSON would pass over blanks and a byte order mark; the format has neither.
  if (!text.starts_with('{')) damaged(path, "its header does not start with '{'", data::in_quotes(text, 16));
  // It would take a zero byte for the end, too.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    damaged(path, str("its header is not valid JSON at byte ", kLengthBytes + zero), "a byte of 0");
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + length;
  HeaderReader reader(header, path);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
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
