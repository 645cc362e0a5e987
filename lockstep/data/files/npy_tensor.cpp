#include "lockstep/data/files/npy_tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/files/file_stages.h"
#include "lockstep/data/format/npy.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {
namespace {

constexpr std::array kDtypes{
    std::pair{NpyType::Bool, at::kBool},
    std::pair{NpyType::Int8, at::kChar},
    std::pair{NpyType::Int16, at::kShort},
    std::pair{NpyType::Int32, at::kInt},
    std::pair{NpyType::Int64, at::kLong},
    std::pair{NpyType::UInt8, at::kByte},
    std::pair{NpyType::UInt16, at::kUInt16},
    std::pair{NpyType::UInt32, at::kUInt32},
    std::pair{NpyType::UInt64, at::kUInt64},
    std::pair{NpyType::Float16, at::kHalf},
    std::pair{NpyType::Float32, at::kFloat},
    std::pair{NpyType::Float64, at::kDouble},
    std::pair{NpyType::Complex64, at::kComplexFloat},
    std::pair{NpyType::Complex128, at::kComplexDouble},
};

}  // namespace

at::Tensor npy_tensor(const std::string& path) {
  const auto file = std::make_shared<const NpyFile>(path);
  const NpyHeader& header = file->header();
  const auto dtype = std::ranges::find(kDtypes, header.type, [](const auto& pair) { return pair.first; })->second;
  if (header.elements == 0) return at::empty(header.shape, at::TensorOptions(dtype));
  std::vector<std::int64_t> strides(header.shape.size());
  std::int64_t step = 1;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    const std::size_t dim = header.fortran_order ? i : strides.size() - 1 - i;
    strides[dim] = step;
    step *= header.shape[dim];
  }
  // The deleter keeps the file mapped for as long as the tensor's memory is used.
  return at::from_blob(
      const_cast<char*>(file->data().data()), header.shape, strides, [file](void*) {}, at::TensorOptions(dtype));
}

void write_npy(const std::string& path, const at::Tensor& tensor) {
  const auto* found = std::ranges::find(kDtypes, tensor.scalar_type(), [](const auto& pair) { return pair.second; });
  if (found == kDtypes.end()) {
    throw Unimplemented(errors::kNpy,
                        {.what = str("npy files cannot hold elements of type ", c10::toString(tensor.scalar_type())),
                         .where = str("write_npy of ", path),
                         .help = "convert it first: tensor.to(at::kFloat)"});
  }
  const at::Tensor plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
  write_npy(path, found->first, plain.sizes().vec(),
            {static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()});
}

StagePtr make_npy_stage(const std::string& path) {
  const at::Tensor tensor = npy_tensor(path);
  if (tensor.dim() == 0) {
    throw InvalidArgument(errors::kShape, {.what = str(path, " must hold an array with rows, got a single number"),
                                           .where = "from_npy",
                                           .help = "use from_tensors(npy_tensor(path))"});
  }
  const StagePtr slices = make_slices(Element::of(tensor));
  const ElementSpec spec = slices->element_spec();
  return make_rows({.kind = "from_npy", .detail = str(path, ": ", tensor.size(0), " rows of ", to_string(spec))},
                   slices->row_source(), spec);
}

}  // namespace lockstep::data
