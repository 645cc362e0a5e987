#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "lockstep/base/function_ref.h"
#include "lockstep/data/format/safetensors.h"

// Tensors of LibTorch in safetensors files.
namespace lockstep::detail {

using TensorMap = std::map<std::string, at::Tensor>;

/// The name of an element type in files; LibTorch's own name for types that files do not support.
std::string file_type_name(at::ScalarType type);

/// Unimplemented for a parameter or buffer that a file cannot hold; the error suggests what to register instead.
void require_savable_member(const std::string& name, const at::Tensor& tensor);

/// Adds checksums to the metadata. Unimplemented for an element type or a layout that the format does not support; the
/// error names the tensor. If `before_commit` throws, an old file is kept.
void write_tensors(
    const std::string& path, const TensorMap& tensors, data::SafetensorsMetadata metadata,
    FunctionRef<void()> before_commit = [] {});

/// Reads a file and checks everything that can be checked without a model: its header, its checksums, and whether this
/// version of Lockstep supports its format.
data::SafetensorsFile open_tensors(data::MappedFile mapped);

/// A copy on the CPU.
at::Tensor copy_of(const data::SafetensorsFile& file, const data::SafetensorsEntry& entry);
/// A tensor over the file's own memory, which must outlive it; a copy if that is not aligned.
at::Tensor view_of(const data::SafetensorsFile& file, const data::SafetensorsEntry& entry);

}  // namespace lockstep::detail
