#include "lockstep/values/print.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <ostream>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/values/print_elements.h"
#include "lockstep/values/write_value.h"

namespace lockstep {
namespace {

constexpr int64_t kSummarizeAbove = 1000;  // elements
constexpr int64_t kEdge = 3;               // rows shown at either end of a summary
constexpr std::size_t kLineWidth = 75;
constexpr int64_t kDots = -1;

/// The layout of an array: with commas over many lines (repr), or with blanks on one (str).
struct Layout {
  std::string separator;
  bool one_line;
  std::size_t width;        // width of a line
  std::string indent = "";  // indentation of continued lines
};

class ArrayWriter {
 public:
  ArrayWriter(const at::Tensor& tensor, const Layout& layout)
      : layout_(layout), shape_(tensor.sizes().vec()), summarize_(tensor.numel() > kSummarizeAbove) {
    const at::Tensor flat = tensor.reshape(-1);
    std::vector<at::Scalar> elements;
    collect(flat, 0, 0, elements);
    texts_ = detail::element_texts(elements, tensor.scalar_type());
  }

  std::string write() { return write_axis(0, layout_.indent, layout_.width); }

 private:
  /// The indices to show along an axis, with kDots for omitted ones.
  std::vector<int64_t> shown(std::size_t axis) const {
    const int64_t length = shape_[axis];
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < length; ++i) {
      if (summarize_ && length > 2 * kEdge && i == kEdge) {
        indices.push_back(kDots);
        i = length - kEdge;
      }
      indices.push_back(i);
    }
    return indices;
  }

  void collect(const at::Tensor& flat, std::size_t axis, int64_t offset, std::vector<at::Scalar>& elements) const {
    if (axis == shape_.size()) {
      elements.push_back(flat[offset].item());
      return;
    }
    for (const int64_t i : shown(axis))
      if (i != kDots) collect(flat, axis + 1, offset * shape_[axis] + i, elements);
  }

  std::string write_axis(std::size_t axis, const std::string& indent, std::size_t width) {
    const bool innermost = axis + 1 == shape_.size();
    const std::string text = innermost ? write_row(axis, indent, width) : write_rows(axis, indent, width);
    return str('[', text.substr(indent.size()), ']');
  }

  std::string write_row(std::size_t axis, const std::string& indent, std::size_t width) {
    const std::size_t room = width - 1;
    std::string text, line = indent;
    const char* separator = "";
    for (const int64_t i : shown(axis)) {
      line += separator;
      separator = layout_.separator.c_str();
      const std::string word = i == kDots ? "..." : texts_[next_++];
      if (line.size() + word.size() > room && line.size() > indent.size()) {
        text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
        line = indent;
      }
      line += word;
    }
    return text + line;
  }

  std::string write_rows(std::size_t axis, const std::string& indent, std::size_t width) {
    const std::size_t axes_left = shape_.size() - axis;
    const std::string comma = layout_.separator.substr(0, layout_.separator.find_last_not_of(' ') + 1);
    const std::string between = layout_.one_line ? layout_.separator : comma + std::string(axes_left - 1, '\n');
    std::string text;
    for (const int64_t i : shown(axis)) {
      if (!text.empty()) text += between;
      if (text.empty() || !layout_.one_line) text += indent;
      text += i == kDots ? "..." : write_axis(axis + 1, layout_.one_line ? "" : indent + ' ', width - 1);
    }
    return text;
  }

  Layout layout_;
  std::vector<int64_t> shape_;
  bool summarize_;
  std::vector<std::string> texts_;
  std::size_t next_ = 0;
};

/// Values readable here: dense, in host memory, without history.
at::Tensor readable(const at::Tensor& tensor) {
  at::Tensor plain = tensor.detach();
  if (plain.layout() != at::kStrided) plain = plain.to_dense();
  return plain.to(at::kCPU).resolve_conj().resolve_neg();
}

bool numpy_would_guess(at::ScalarType dtype) {
  return dtype == at::kLong || dtype == at::kDouble || dtype == at::kBool || dtype == at::kComplexDouble;
}

}  // namespace

std::string shape_repr(at::IntArrayRef shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += str(i ? ", " : "", shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte: return "uint8";
    case at::kChar: return "int8";
    case at::kShort: return "int16";
    case at::kInt: return "int32";
    case at::kLong: return "int64";
    case at::kHalf: return "float16";
    case at::kFloat: return "float32";
    case at::kDouble: return "float64";
    case at::kComplexHalf: return "complex32";
    case at::kComplexFloat: return "complex64";
    case at::kComplexDouble: return "complex128";
    default: break;
  }
  std::string name = c10::toString(dtype);  // "Bool", "BFloat16", "UInt16", "Float8_e5m2", ...
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

std::string numpy_repr(const at::Tensor& tensor) {
  if (!tensor.defined()) return "None";
  if (tensor.dim() == 0 && !tensor.is_meta()) return detail::scalar_text(readable(tensor).item(), tensor.scalar_type());

  const bool empty = tensor.numel() == 0;
  const bool summarized = tensor.numel() > kSummarizeAbove;
  std::vector<std::string> extras;
  if (tensor.is_meta() || summarized || (empty && tensor.dim() != 1))
    extras.push_back("shape=" + shape_repr(tensor.sizes()));
  if (!numpy_would_guess(tensor.scalar_type()) || empty) extras.push_back("dtype=" + dtype_name(tensor.scalar_type()));

  const std::string head = "array(";
  const Layout layout{
      .separator = ", ", .one_line = false, .width = kLineWidth - 1, .indent = std::string(head.size() + 1, ' ')};
  std::string text = head + (tensor.is_meta() ? "..." : empty ? "[]" : ArrayWriter(readable(tensor), layout).write());
  if (extras.empty()) return text + ")";
  const std::string tail = extras.size() == 1 ? extras[0] + ")" : str(extras[0], ", ", extras[1], ')');
  const std::size_t last_line = text.size() - (text.rfind('\n') + 1);
  const bool wrap = last_line + tail.size() + 2 > kLineWidth;
  return str(text, ',', wrap ? '\n' + std::string(head.size(), ' ') : " ", tail);
}

std::string numpy_str(const at::Tensor& tensor) {
  if (!tensor.defined()) return "None";
  if (tensor.is_meta()) return "...";
  if (tensor.dim() == 0) return detail::scalar_text(readable(tensor).item(), tensor.scalar_type());
  if (tensor.numel() == 0) return "[]";
  const Layout layout{.separator = " ", .one_line = true, .width = std::numeric_limits<std::size_t>::max()};
  return ArrayWriter(readable(tensor), layout).write();
}

void write_value(std::ostream& out, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    out << "Tensor(undefined)";
    return;
  }
  out << "Tensor(" << numpy_str(tensor) << ", shape=" << shape_repr(tensor.sizes())
      << ", dtype=" << dtype_name(tensor.scalar_type()) << ')';
}

}  // namespace lockstep
