#include "lockstep/data/format/npy.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "lockstep/data/errors.h"
#include "lockstep/data/format/byte_writer.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/format/listed.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kLongestHeader = std::size_t{1} << 20;
constexpr std::size_t kMostDimensions = 64;  // numpy's own limit
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kOldAlignment = 16;  // numpy before 1.14

/// In the order of NpyType: byte order, kind and bytes per element.
constexpr std::array<std::string_view, 14> kTypes{"|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2",
                                                  "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"};

[[noreturn]] void damaged(const std::string& path, const std::string& what, std::uint64_t offset,
                          const std::string& seen = {}) {
  throw DataLoss(errors::kNpy, {.what = str(path, " is a damaged npy file: ", what),
                                .where = str("byte ", offset, " of ", path),
                                .seen = seen,
                                .help = "save the array again with numpy.save"});
}

/// Parses the dictionary of a header: a small, fixed subset of Python's literals. Evaluates nothing.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::size_t offset, const std::string& path)
      : text_(text), offset_(offset), path_(path) {}

  void parse(NpyHeader& header) {
    const auto value_of = [&](std::string_view key) {
      if (key == "descr") {
        header.type = type();
      } else if (key == "fortran_order") {
        header.fortran_order = boolean();
      } else if (key == "shape") {
        header.shape = tuple();
      } else {
        fail(str("unknown key ", in_quotes(key)));
      }
    };
    std::vector<std::string_view> keys;
    expect('{');
    while (!accept('}')) {
      keys.push_back(quoted_text());
      if (std::ranges::count(keys, keys.back()) > 1) fail(str("key ", in_quotes(keys.back()), " comes twice"));
      expect(':');
      value_of(keys.back());
      if (accept('}')) break;
      expect(',');
    }
    if (keys.size() < 3) fail("it lacks descr, fortran_order or shape");
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == '\n') ++at_;
    if (at_ != text_.size()) fail("more text follows the dictionary");
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    damaged(path_, "its header: " + what, offset_ + at_, in_quotes(text_.substr(std::min(at_, text_.size()))));
  }

  void skip_blanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool accept(char c) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(str("'", c, "' expected"));
  }

  std::string_view quoted_text() {
    skip_blanks();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) fail("a text in quotes expected");
    const std::size_t close = text_.find(text_[at_], at_ + 1);
    if (close == std::string_view::npos) fail("quotes that do not close");
    const std::string_view content = text_.substr(at_ + 1, close - at_ - 1);
    if (content.find('\\') != std::string_view::npos) fail("a backslash inside quotes");
    at_ = close + 1;
    return content;
  }

  bool boolean() {
    skip_blanks();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    fail("True or False expected");
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> extents;
    expect('(');
    if (accept(')')) return extents;
    for (;;) {
      if (extents.size() == kMostDimensions) fail("more than 64 dimensions");
      extents.push_back(number());
      const bool comma = accept(',');
      if (accept(')')) {
        if (!comma && extents.size() == 1) fail("a number in parentheses is not a tuple");
        return extents;
      }
      if (!comma) fail("',' or ')' expected");
    }
  }

  std::int64_t number() {
    skip_blanks();
    const std::size_t start = at_;
    std::int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const int digit = text_[at_] - '0';
      if (value > (std::numeric_limits<std::int64_t>::max() - digit) / 10) fail("an extent above 2^63 - 1");
      value = 10 * value + digit;
    }
    if (at_ == start) fail("a number expected");
    if (text_[start] == '0' && at_ - start > 1) fail("a number that starts with 0");
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // written by Python 2
    return value;
  }

  NpyType type() {
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == '[') unsupported("records", "save each field as an array of its own");
    const std::size_t start = at_;
    const std::string_view name = quoted_text();
    const std::string_view bare = name.substr(std::min<std::size_t>(name.size(), 1));
    const auto* known = std::ranges::find(kTypes, bare, [](std::string_view type) { return type.substr(1); });
    const bool is_known = known != kTypes.end();
    const bool any_order =
        is_known && known->front() == '|' && std::string_view("<|>=").find(name[0]) != std::string_view::npos;
    if (is_known && (name == *known || any_order)) return static_cast<NpyType>(known - kTypes.begin());
    at_ = start;
    if (name.size() < 2) fail("not an element type");
    switch (name[1]) {
      case 'O': unsupported("Python objects", "they could run any code when read; save plain numbers");
      case 'S':
      case 'a':
      case 'U': unsupported("text", "encode it as numbers");
      case 'V': unsupported("records or raw bytes", "view them as uint8 before saving");
      case 'M':
      case 'm': unsupported("dates or times", "view them as int64 before saving");
      default: break;
    }
    if (is_known && name[0] == '>')
      unsupported("big-endian numbers", "save array.astype(array.dtype.newbyteorder('<'))");
    fail(str("unknown element type ", in_quotes(name)));
  }

  [[noreturn]] void unsupported(const std::string& what, const std::string& help) const {
    throw Unimplemented(errors::kNpy, {.what = str(path_, " holds ", what, ", which Lockstep does not read"),
                                       .where = str("byte ", offset_ + at_, " of ", path_),
                                       .seen = in_quotes(text_.substr(at_)),
                                       .help = help});
  }

  std::string_view text_;
  std::size_t offset_;
  const std::string& path_;
  std::size_t at_ = 0;
};

std::string npy_shape_text(const std::vector<std::int64_t>& shape) {
  return str("(", listed(shape), shape.size() == 1 ? "," : "", ")");
}

}  // namespace

std::string_view to_string(NpyType type) { return kTypes.at(static_cast<std::size_t>(type)); }
std::size_t item_size(NpyType type) {
  return type == NpyType::Complex128 ? 16 : static_cast<std::size_t>(to_string(type)[2] - '0');
}

NpyHeader parse_npy_header(std::string_view bytes, const std::string& path) {
  if (!bytes.starts_with(kMagic))
    damaged(path, "it does not start with \\x93NUMPY", 0, hex_bytes(bytes, kMagic.size()));
  const std::string_view version = bytes.substr(kMagic.size()).substr(0, 2);
  if (version.size() < 2) damaged(path, "it ends inside its header", bytes.size());
  const int major = static_cast<unsigned char>(version[0]);
  if (major < 1 || major > 3 || version[1] != 0) {
    damaged(path, "versions 1.0, 2.0 and 3.0 exist", kMagic.size(),
            str("version ", major, '.', static_cast<int>(static_cast<unsigned char>(version[1]))));
  }
  const std::size_t length_at = kMagic.size() + 2;
  const std::size_t text_at = length_at + (major == 1 ? 2 : 4);
  if (bytes.size() < text_at) damaged(path, "it ends inside its header", bytes.size());
  const std::size_t length = little_endian(bytes.substr(length_at, text_at - length_at));
  if (length > kLongestHeader || length > bytes.size() - text_at) {
    damaged(path, "its header claims to be longer than it can be", length_at,
            str("length ", length, ", the file has ", bytes.size() - text_at, " more bytes"));
  }
  NpyHeader header;
  HeaderParser(bytes.substr(text_at, length), text_at, path).parse(header);
  header.data_offset = text_at + length;
  if (header.data_offset % kOldAlignment != 0) {
    damaged(path, "its data does not start at a multiple of 16 bytes", header.data_offset);
  }
  const auto bytes_needed = array_bytes(header.shape, item_size(header.type));
  if (!bytes_needed)
    damaged(path, "its shape is larger than any file", text_at, str("shape ", npy_shape_text(header.shape)));
  header.data_bytes = *bytes_needed;
  header.elements = *bytes_needed / item_size(header.type);
  return header;
}

NpyFile::NpyFile(std::string path) : file_(std::move(path)), header_(parse_npy_header(file_.bytes(), file_.path())) {
  const std::uint64_t has = file_.bytes().size() - header_.data_offset;
  if (has != header_.data_bytes) {
    damaged(file_.path(),
            has < header_.data_bytes ? "it has fewer bytes than its shape needs" : "bytes follow its data",
            header_.data_offset + std::min(has, header_.data_bytes),
            str("shape ", npy_shape_text(header_.shape), " of ", to_string(header_.type), " needs ", header_.data_bytes,
                " bytes, the file has ", has));
  }
}

std::string npy_header(NpyType type, const std::vector<std::int64_t>& shape, bool fortran_order) {
  std::string text = str("{'descr': '", to_string(type), "', 'fortran_order': ", fortran_order ? "True" : "False",
                         ", 'shape': ", npy_shape_text(shape), ", }");
  // 64 dimensions at most, so the length always fits the 2 bytes of version 1.
  const std::size_t before = kMagic.size() + 4;
  const std::size_t length = (before + text.size() + 1 + kAlignment - 1) / kAlignment * kAlignment - before;
  std::string header(kMagic);
  for (const std::size_t byte : {std::size_t{1}, std::size_t{0}, length & 0xff, length >> 8})
    header += static_cast<char>(byte);
  text.resize(length - 1, ' ');
  return header + text + '\n';
}

void write_npy(const std::string& path, NpyType type, const std::vector<std::int64_t>& shape, std::string_view data,
               bool fortran_order) {
  const auto bytes = array_bytes(shape, item_size(type));
  if (bytes != data.size() || shape.size() > kMostDimensions) {
    throw InvalidArgument(errors::kShape,
                          {.what = str("an array of shape ", npy_shape_text(shape), " and type ", to_string(type),
                                       " does not have ", data.size(), " bytes"),
                           .where = str("write_npy of ", path),
                           .seen = bytes ? str("it needs ", *bytes) : std::string("no file can hold so many"),
                           .help = "give the bytes of all elements, and a shape of at most 64 dimensions"});
  }
  ByteWriter writer(path);
  writer.append(npy_header(type, shape, fortran_order));
  writer.append(data);
  writer.close();
}

}  // namespace lockstep::data
