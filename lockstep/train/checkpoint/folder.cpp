#include "lockstep/train/checkpoint/folder.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/format/mapped_file.h"
#include "lockstep/data/format/safetensors.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return step;
}

/// The first line of an error, without the path of the checkpoint in front.
std::string in_one_line(const Error& error, const std::string& checkpoint) {
  std::string what = error.text().what;
  if (const std::size_t at = what.find(checkpoint + '/'); at != what.npos) what.erase(at, checkpoint.size() + 1);
  return error.text().seen.empty() ? what : str(what, " (", error.text().seen, ")");
}

std::string damage_of(const std::string& checkpoint, const CheckpointFile& file) {
  const std::string path = str(checkpoint, '/', file.name);
  std::error_code failed;
  if (!fs::exists(path, failed)) return str(file.name, " is missing");
  const data::MappedFile mapped(path);
  if (mapped.bytes().size() != file.bytes)
    return str(file.name, " has ", mapped.bytes().size(), " bytes, ", file.bytes, " when it was written");
  if (crc32c(mapped.bytes()) == file.crc32c) return {};
  std::string what = "its bytes have changed";
  try {
    if (file.name.ends_with(".safetensors")) require_safetensors_checksums(data::SafetensorsFile(mapped));
  } catch (const Error& error) {
    what = error.text().what;  // names the tensor, or what is wrong with the header
    if (const std::string prefix = path + " is damaged: "; what.starts_with(prefix)) what.erase(0, prefix.size());
  }
  return str(file.name, " is damaged: ", what);
}

}  // namespace

std::string detail::name_of_replaced(std::string_view name) {
  if (!name.starts_with('.') || !name.ends_with(kReplaced)) return {};
  name = name.substr(1, name.size() - 1 - kReplaced.size());
  return std::string(name.substr(0, name.rfind('.')));
}

std::vector<CheckpointEntry> list_checkpoints(const std::string& folder) {
  std::vector<CheckpointEntry> found;
  if (is_being_tuned()) return found;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed); !failed && entry != fs::directory_iterator();
       entry.increment(failed)) {
    const std::string name = entry->path().filename().string(), replaced = detail::name_of_replaced(name);
    if (!replaced.empty() && fs::exists(str(folder, '/', replaced))) continue;
    if (const auto step = step_of(replaced.empty() ? name : replaced)) found.push_back({*step, entry->path().string()});
  }
  if (failed && failed != std::errc::no_such_file_or_directory)
    data::throw_file_error("list the folder", folder, failed.value());
  std::ranges::sort(found, {}, &CheckpointEntry::step);
  return found;
}

Manifest read_manifest(const std::string& checkpoint) {
  const std::string path = str(checkpoint, '/', detail::kManifestName);
  return detail::parse_manifest(data::MappedFile(path).bytes(), path);
}

std::string find_damage(const std::string& checkpoint) {
  try {
    if (std::error_code failed; !fs::exists(str(checkpoint, '/', detail::kManifestName), failed))
      return str(detail::kManifestName, " is missing");
    for (const CheckpointFile& file : read_manifest(checkpoint).files) {
      if (std::string damage = damage_of(checkpoint, file); !damage.empty()) return damage;
    }
  } catch (const Error& error) {
    return in_one_line(error, checkpoint);
  }
  return {};
}

std::optional<CheckpointEntry> newest_checkpoint(const std::string& folder) {
  auto all = list_checkpoints(folder);
  for (auto entry = all.rbegin(); entry != all.rend(); ++entry) {
    const std::string damage = find_damage(entry->path);
    if (damage.empty() && read_manifest(entry->path).is_complete()) return *entry;
    if (!damage.empty()) log_warning(str("checkpoint ", entry->path, " is not used: ", damage));
  }
  return std::nullopt;
}

}  // namespace lockstep::train
