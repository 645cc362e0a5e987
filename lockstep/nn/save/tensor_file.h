#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "lockstep/base/function_ref.h"
#include "lockstep/data/format/safetensors.h"

// Tensors of LibTorch in safetensors files.
namespace lockstep::detail {

using TensorMap = std::map<std::string, at::Tensor>;

/// The name of an element type as files have it; LibTorch's own for those that they do not have.
std::string file_type_name(at::ScalarType type);

/// Unimplemented for a parameter or buffer that no file can hold; the error says what to register instead.
void require_savable_member(const std::string& name, const at::Tensor& tensor);

/// Adds checksums to the metadata. Unimplemented for an element type or a layout that the format does not have; the
/// error names the tensor. If `before_commit` throws, an old file stays.
void write_tensors(
    const std::string& path, const TensorMap& tensors, data::SafetensorsMetadata metadata,
    FunctionRef<void()> before_commit = [] {});

/// Reads a file and checks all that can be checked without a model: its header, its checksums, and whether this Lockstep
/// knows its format.
data::SafetensorsFile open_tensors(data::MappedFile mapped);

/// A copy on the CPU.
at::Tensor copy_of(const data::SafetensorsFile& file, const data::SafetensorsEntry& entry);
/// The file's own memory, which must outlive the tensor; a copy where that is not aligned.
at::Tensor view_of(const data::SafetensorsFile& file, const data::SafetensorsEntry& entry);

}  // namespace lockstep::detail
