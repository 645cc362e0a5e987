#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "lockstep/data/errors.h"
#include "lockstep/data/files/files.h"
#include "lockstep/data/format/npy.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {
namespace {

/// In the order of NpyType.
constexpr std::array kDtypes{at::kBool,  at::kChar,   at::kShort,        at::kInt,          at::kLong,
                             at::kByte,  at::kUInt16, at::kUInt32,       at::kUInt64,       at::kHalf,
                             at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};

}  // namespace

at::Tensor npy_tensor(const std::string& path) {
  const auto file = std::make_shared<const NpyFile>(path);
  const NpyHeader& header = file->header();
  const at::ScalarType dtype = kDtypes.at(static_cast<std::size_t>(header.type));
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
  const auto* found = std::ranges::find(kDtypes, tensor.scalar_type());
  if (found == kDtypes.end()) {
    throw Unimplemented(errors::kNpy,
                        {.what = str("npy files cannot hold elements of type ", c10::toString(tensor.scalar_type())),
                         .where = str("write_npy of ", path),
                         .help = "convert it first: tensor.to(at::kFloat)"});
  }
  const at::Tensor plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
  write_npy(path, static_cast<NpyType>(found - kDtypes.begin()), plain.sizes().vec(),
            {static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()});
}

Dataset<at::Tensor> from_npy(const std::string& path) {
  const at::Tensor tensor = npy_tensor(path);
  if (tensor.dim() == 0) {
    throw InvalidArgument(errors::kShape, {.what = str(path, " must hold an array with rows, got a single number"),
                                           .where = "from_npy",
                                           .help = "use from_tensors(npy_tensor(path))"});
  }
  const StagePtr slices = make_slices(Element::of(tensor));
  const ElementSpec spec = slices->element_spec();
  return Dataset<at::Tensor>(
      make_rows({.kind = "from_npy", .detail = str(path, ": ", tensor.size(0), " rows of ", to_string(spec))},
                slices->row_source(), spec));
}

}  // namespace lockstep::data
