#pragma once

#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/format/safetensors.h"

// Checksums inside a safetensors file. The format has none of its own, so that a flipped bit would become a weight.
namespace lockstep::data {

/// Of metadata, keys with this beginning are Lockstep's.
inline constexpr std::string_view kOwnMetadata = "lockstep.";
/// CRC32C numbers in hexadecimal digits: first of Lockstep's other metadata, then of each tensor in the order of the file.
inline constexpr const char* kChecksumKey = "lockstep.crc32c";

/// The value for `kChecksumKey`; `tensors` in the order of the file.
LOCKSTEP_EXPORT std::string safetensors_checksums(const std::vector<SafetensorsTensor>& tensors,
                                                  const SafetensorsMetadata& metadata);

/// DataLoss, with the name of the first damaged tensor, if the file has checksums and they do not fit.
LOCKSTEP_EXPORT void require_safetensors_checksums(const SafetensorsFile& file);

}  // namespace lockstep::data
