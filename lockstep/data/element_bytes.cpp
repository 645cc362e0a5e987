#include "lockstep/data/element_bytes.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <iterator>
#include <type_traits>
#include <variant>

#include "lockstep/base/error.h"
#include "lockstep/data/format/mapped_file.h"

namespace lockstep::data {
namespace {

// A component and a mark of a skeleton begin with their index in the variant. The sizes of a tensor and the strings of
// a batch follow the least number of bytes they take.
constexpr std::int64_t kSize = sizeof(std::int64_t);

void put(std::string& out, std::int64_t number) { out.append(reinterpret_cast<const char*>(&number), sizeof number); }
void put(std::string& out, std::string_view bytes) {
  put(out, static_cast<std::int64_t>(bytes.size()));
  out.append(bytes);
}

class Parser {
 public:
  Parser(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  std::int64_t number() {
    std::int64_t value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  /// A count of items that take at least one byte each, so a crafted count cannot request more memory than the file has
  /// bytes.
  std::size_t count() {
    const std::int64_t value = number();
    if (value < 0 || static_cast<std::uint64_t>(value) > bytes_.size()) fail("a count is out of range");
    return static_cast<std::size_t>(value);
  }
  std::string_view text() { return take(count()); }
  std::string_view take(std::size_t size) {
    if (size > bytes_.size()) fail("it ends too early");
    const std::string_view part = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return part;
  }
  bool done() const { return bytes_.empty(); }

  [[noreturn]] void fail(const char* seen) const {
    throw DataLoss(errors::kCacheFile, {.what = "the bytes are not an element of a dataset",
                                        .where = where_,
                                        .seen = seen,
                                        .help = "delete the file; the next pass writes it again"});
  }

 private:
  std::string_view bytes_;
  const std::string& where_;
};

bool is_known_dtype(std::int64_t dtype) {
  if (dtype < 0 || dtype >= static_cast<std::int64_t>(at::ScalarType::Undefined)) return false;
  const auto type = static_cast<at::ScalarType>(dtype);
  return c10::isIntegralType(type, /*includeBool=*/true) || c10::isFloatingType(type) || c10::isComplexType(type);
}

at::Tensor parse_tensor(Parser& parser) {
  const std::int64_t dtype = parser.number();
  if (!is_known_dtype(dtype)) parser.fail("an unknown element type");
  const auto type = static_cast<at::ScalarType>(dtype);
  std::vector<std::int64_t> shape(parser.count() / kSize);
  for (std::int64_t& size : shape) size = parser.number();
  const auto bytes = array_bytes(shape, c10::elementSize(type));
  if (!bytes) parser.fail("a shape is out of range");
  const std::string_view contents = parser.text();
  if (contents.size() != *bytes) parser.fail("a tensor does not have as many bytes as its shape");
  at::Tensor tensor = at::empty(shape, at::TensorOptions(type));
  if (!contents.empty()) std::memcpy(tensor.mutable_data_ptr(), contents.data(), contents.size());
  return tensor;
}

}  // namespace

std::string to_bytes(const Element& element, const char* where) {
  std::string out;
  const Skeleton none;
  const Skeleton& skeleton = element.skeleton ? *element.skeleton : none;
  put(out, std::ssize(skeleton.marks));
  for (const auto& mark : skeleton.marks) {
    put(out, static_cast<std::int64_t>(mark.index()));
    std::visit([&](const auto& number_or_key) { put(out, number_or_key); }, mark);
  }
  put(out, std::ssize(element.components));
  for (const Component& component : element.components) {
    put(out, static_cast<std::int64_t>(component.index()));
    if (const auto* tensor = std::get_if<at::Tensor>(&component)) {
      const at::Tensor plain = values_in_order(*tensor, element, where);
      put(out, static_cast<std::int64_t>(plain.scalar_type()));
      put(out, plain.dim() * kSize);
      for (const std::int64_t size : plain.sizes()) put(out, size);
      put(out, std::string_view(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()));
    } else if (const auto* bytes = std::get_if<std::string>(&component)) {
      put(out, *bytes);
    } else if (const auto* strings = std::get_if<Strings>(&component)) {
      put(out, strings->size() * kSize);
      for (const std::string& each : *strings) put(out, each);
    } else {
      throw InvalidArgument(errors::kStructure,
                            {.what = "datasets within elements can be neither compared nor written to a file",
                             .where = where,
                             .seen = describe(element),
                             .help = "flatten them with flat_map before"});
    }
  }
  return out;
}

// The kinds in files: 0, 1 and 2.
static_assert(std::is_same_v<Component, std::variant<at::Tensor, std::string, Strings, StagePtr>>);

Element element_from_bytes(std::string_view bytes, const std::string& where) {
  Parser parser(bytes, where);
  Element element;
  const std::size_t marks = parser.count();
  if (marks > 0) {
    auto skeleton = std::make_shared<Skeleton>();
    for (std::size_t i = 0; i < marks; ++i) {
      if (parser.number() == 0)
        skeleton->marks.emplace_back(parser.number());
      else
        skeleton->marks.emplace_back(std::string(parser.text()));
    }
    element.skeleton = std::move(skeleton);
  }
  const std::size_t components = parser.count();
  for (std::size_t i = 0; i < components; ++i) {
    const std::int64_t kind = parser.number();
    if (kind == 0) {
      element.components.emplace_back(parse_tensor(parser));
    } else if (kind == 1) {
      element.components.emplace_back(std::string(parser.text()));
    } else if (kind == 2) {
      std::vector<std::string> values(parser.count() / kSize);
      for (std::string& value : values) value = std::string(parser.text());
      element.components.emplace_back(Strings(std::move(values)));
    } else {
      parser.fail("an unknown kind of component");
    }
  }
  if (!parser.done()) parser.fail("bytes are left over");
  return element;
}

}  // namespace lockstep::data
