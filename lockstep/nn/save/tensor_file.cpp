#include "lockstep/nn/save/tensor_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/save/saved_metadata.h"

namespace lockstep::detail {
namespace {

using data::SafetensorsType;

constexpr std::array kTypes{
    std::pair{SafetensorsType::Bool, at::kBool},
    std::pair{SafetensorsType::UInt8, at::kByte},
    std::pair{SafetensorsType::Int8, at::kChar},
    std::pair{SafetensorsType::Float8E5M2, at::ScalarType::Float8_e5m2},
    std::pair{SafetensorsType::Float8E4M3, at::ScalarType::Float8_e4m3fn},
    std::pair{SafetensorsType::Int16, at::kShort},
    std::pair{SafetensorsType::UInt16, at::ScalarType::UInt16},
    std::pair{SafetensorsType::Float16, at::kHalf},
    std::pair{SafetensorsType::BFloat16, at::kBFloat16},
    std::pair{SafetensorsType::Int32, at::kInt},
    std::pair{SafetensorsType::UInt32, at::ScalarType::UInt32},
    std::pair{SafetensorsType::Float32, at::kFloat},
    std::pair{SafetensorsType::Float64, at::kDouble},
    std::pair{SafetensorsType::Int64, at::kLong},
    std::pair{SafetensorsType::UInt64, at::ScalarType::UInt64},
};

std::optional<SafetensorsType> file_type(at::ScalarType type) {
  for (const auto& [in_file, in_torch] : kTypes) {
    if (in_torch == type) return in_file;
  }
  return std::nullopt;
}

at::ScalarType torch_type(SafetensorsType type) {
  for (const auto& [in_file, in_torch] : kTypes) {
    if (in_file == type) return in_torch;
  }
  throw Internal(errors::kInternal, {.what = "an element type without a counterpart in LibTorch",
                                     .help = "report this as a bug in Lockstep"});
}

[[noreturn]] void refuse(const std::string& name, const std::string& why, const char* help) {
  throw Unimplemented(
      errors::kSafetensors,
      {.what = lockstep::str("tensor '", name, "' cannot be saved: ", why), .where = "save", .help = help});
}

/// The tensor's owner: the remedy depends on it.
enum class Owner { Caller, Model };

SafetensorsType savable_type(const std::string& name, const at::Tensor& tensor, Owner owner) {
  const auto help = [owner](const char* for_caller, const char* for_model) {
    return owner == Owner::Model ? for_model : for_caller;
  };
  if (!tensor.defined()) refuse(name, "it is undefined", "leave it out, or give it a value");
  if (tensor.is_meta()) {
    refuse(name, "it is on the meta device and has no values",
           help("give it values, or leave it out", "register a tensor with values, on a device that has memory"));
  }
  if (tensor.layout() != at::kStrided) {
    refuse(name, lockstep::str("its layout is ", tensor.layout()),
           help("save tensor.to_dense(), or its indices and values under two names",
                "build it in the module's constructor and keep it in a plain member instead of a registered buffer, or "
                "register it dense: register_buffer(name, tensor.to_dense())"));
  }
  if (tensor.is_quantized())
    refuse(name, "it is quantized",
           help("save tensor.int_repr() and its scale and zero point under names of their own",
                "register tensor.int_repr() and its scale and zero point, and make it of them in forward"));
  if (tensor.is_complex()) {
    refuse(name, lockstep::str("safetensors files have no ", tensor.scalar_type()),
           help("save torch::view_as_real(tensor) and take torch::view_as_complex of it after loading",
                "register torch::view_as_real(tensor) and take torch::view_as_complex of it in forward; a constant can "
                "be a plain member of the module instead"));
  }
  const auto type = file_type(tensor.scalar_type());
  if (!type) {
    refuse(name, lockstep::str("safetensors files have no ", tensor.scalar_type()),
           help("convert it first: tensor.to(torch::kFloat)",
                "register it as another type: register_buffer(name, tensor.to(torch::kFloat))"));
  }
  return *type;
}

}  // namespace

std::string file_type_name(at::ScalarType type) {
  const auto known = file_type(type);
  return known ? std::string(to_string(*known)) : std::string(c10::toString(type));
}

void require_savable_member(const std::string& name, const at::Tensor& tensor) {
  savable_type(name, tensor, Owner::Model);
}

void write_tensors(const std::string& path, const TensorMap& tensors, data::SafetensorsMetadata metadata,
                   FunctionRef<void()> before_commit) {
  std::vector<at::Tensor> kept;  // owns the memory of the bytes below
  std::vector<data::SafetensorsTensor> described;
  for (const auto& [name, tensor] : tensors) {
    const SafetensorsType type = savable_type(name, tensor, Owner::Caller);
    kept.push_back(tensor.detach().cpu().resolve_neg().contiguous());
    const auto* bytes = static_cast<const char*>(kept.back().const_data_ptr());
    described.push_back({name, type, kept.back().sizes().vec(), {bytes, kept.back().nbytes()}});
  }
  sort_for_safetensors(described);
  metadata.insert_or_assign(kFormatKey, std::string(kNewestFormat));
  metadata[data::kChecksumKey] = safetensors_checksums(described, metadata);
  write_safetensors(path, std::move(described), metadata, before_commit);
}

data::SafetensorsFile open_tensors(data::MappedFile mapped) {
  data::SafetensorsFile file(std::move(mapped));
  require_safetensors_checksums(file);
  const auto format = file.metadata().find(kFormatKey);
  if (format != file.metadata().end() && format->second != kNewestFormat) {
    throw Unimplemented(errors::kSafetensors,
                        {.what = lockstep::str(file.path(), " has format ", format->second,
                                               ", this Lockstep reads format ", kNewestFormat),
                         .where = lockstep::str("metadata of ", file.path()),
                         .help = "load it with the version of Lockstep that saved it, or a newer one"});
  }
  return file;
}

at::Tensor copy_of(const data::SafetensorsFile& file, const data::SafetensorsEntry& entry) {
  const std::string_view bytes = file.bytes_of(entry);
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(torch_type(entry.type)));
  if (bytes.empty()) return tensor;
  auto* const to = static_cast<char*>(tensor.mutable_data_ptr());
  if (entry.type == SafetensorsType::Bool)  // any byte may represent true in a file, but not in memory
    std::ranges::transform(bytes, to, [](char byte) { return static_cast<char>(byte != 0); });
  else
    std::memcpy(to, bytes.data(), bytes.size());
  return tensor;
}

at::Tensor view_of(const data::SafetensorsFile& file, const data::SafetensorsEntry& entry) {
  const std::string_view bytes = file.bytes_of(entry);
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % item_size(entry.type) == 0;
  if (bytes.empty() || !is_aligned || entry.type == SafetensorsType::Bool) return copy_of(file, entry);
  return at::from_blob(const_cast<char*>(bytes.data()), entry.shape, at::TensorOptions(torch_type(entry.type)));
}

}  // namespace lockstep::detail
