#include "lockstep/data/format/safetensors_checksums.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "lockstep/base/crc32c.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/format/file_error.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kDigits = 8;

std::string digits(std::uint32_t crc) {
  std::array<char, kDigits + 1> text{};
  std::snprintf(text.data(), text.size(), "%08x", static_cast<unsigned>(crc));
  return text.data();
}

std::string of_metadata(const SafetensorsMetadata& metadata) {
  std::uint32_t crc = 0;
  for (const auto& [key, value] : metadata) {
    if (!key.starts_with(kOwnMetadata) || key == kChecksumKey) continue;
    crc = crc32c(str(key, '=', value, '\n'), crc);
  }
  return digits(crc);
}

[[noreturn]] void damaged(const SafetensorsFile& file, const std::string& what, std::string seen = {}) {
  throw DataLoss(errors::kSafetensors,
                 {.what = str(file.path(), " is damaged: ", what),
                  .where = str("checksums of ", file.path()),
                  .seen = std::move(seen),
                  .help = str("use another copy of the file; if another program has changed its tensors on purpose, "
                              "save it without the metadata '",
                              kChecksumKey, "'")});
}

}  // namespace

std::string safetensors_checksums(const std::vector<SafetensorsTensor>& tensors, const SafetensorsMetadata& metadata) {
  std::string text = of_metadata(metadata);
  for (const SafetensorsTensor& tensor : tensors) text += ' ' + digits(crc32c(tensor.bytes));
  return text;
}

void require_safetensors_checksums(const SafetensorsFile& file) {
  const auto found = file.metadata().find(kChecksumKey);
  if (found == file.metadata().end()) return;
  const std::string_view text = found->second;
  if (text.size() != kDigits + (kDigits + 1) * file.tensors().size())
    damaged(file, "it does not have one checksum per tensor",
            counted(static_cast<int>(file.tensors().size()), "tensor"));
  const auto number = [&](std::size_t i) { return text.substr(i * (kDigits + 1), kDigits); };
  if (number(0) != of_metadata(file.metadata())) damaged(file, "its metadata has changed");
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const SafetensorsEntry& tensor = file.tensors()[i];
    const std::string crc = digits(crc32c(file.bytes_of(tensor)));
    if (crc == number(i + 1)) continue;
    damaged(file, str("the bytes of tensor ", data::in_quotes(tensor.name, 200), " have changed"),
            str("CRC32C ", crc, ", written as ", number(i + 1)));
  }
}

}  // namespace lockstep::data
