#include "lockstep/train/checkpoint/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <charconv>
#include <filesystem>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/atomic_file.h"
#include "lockstep/nn/save/saved_metadata.h"
#include "lockstep/nn/save/tensor_file.h"
#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/checkpoint/texts.h"
#include "lockstep/version.h"

namespace lockstep::train {
namespace {

using lockstep::detail::TensorMap;

/// The part of entries whose names have no part that could be the name of a file.
constexpr const char* kOtherPart = "_values";

/// The file of an entry, and its name in there.
struct Place {
  std::string part, prefix, name;
};

Place place_of(const std::string& entry) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  constexpr std::size_t kLongest = 100;
  const std::size_t end = entry.find('/');
  const std::string part = entry.substr(0, end);
  const bool is_name = end != entry.npos && !part.empty() && part.size() <= kLongest && part.front() != '_' &&
                       part.find_first_not_of(kSafe) == part.npos && end + 1 < entry.size();
  if (!is_name) return {kOtherPart, "", entry};
  return {part, part + '/', entry.substr(end + 1)};
}

struct TensorFile {
  CheckpointFile file;
  TensorMap tensors;
};

std::map<std::string, TensorFile> files_of(const Snapshot& snapshot) {
  std::map<std::string, TensorFile> files;
  const auto add = [&](const Place& place, bool by_replica, const std::string& name, const at::Tensor& tensor) {
    const std::string file = detail::part_file_name(place.part, by_replica);
    files[file].file = {.name = file, .prefix = place.prefix, .by_replica = by_replica};
    files[file].tensors.emplace(name, tensor);
  };
  for (const auto& [entry, tensor] : snapshot.shared) {
    const Place place = place_of(entry);
    add(place, false, place.name, tensor);
  }
  for (const auto& [entry, tensors] : snapshot.by_replica) {
    const Place place = place_of(entry);
    for (const auto& [replica, tensor] : tensors) add(place, true, str(replica, '/', place.name), tensor);
  }
  return files;
}

std::uint64_t bytes_of(const std::map<std::string, TensorFile>& files, const std::string& texts) {
  constexpr std::uint64_t kPerTensor = 256, kPerCheckpoint = 16 << 10;  // headers, manifest, whole blocks of the disk
  std::uint64_t bytes = kPerCheckpoint + texts.size();
  for (const auto& [name, file] : files) {
    for (const auto& [tensor_name, tensor] : file.tensors)
      bytes += kPerTensor + (tensor.defined() ? tensor.nbytes() : 0);
  }
  return bytes;
}

[[noreturn]] void damaged(const std::string& checkpoint, const std::string& what) {
  throw DataLoss(errors::kCheckpoint,
                 {.what = str("checkpoint ", checkpoint, " cannot be read: ", what),
                  .help = "use an older one, which newest_checkpoint(folder) finds, or a copy of this one"});
}

/// The file's own memory, which lives as long as the tensor.
at::Tensor mapped_tensor(const std::shared_ptr<const data::SafetensorsFile>& file,
                         const data::SafetensorsEntry& entry) {
  const at::Tensor view = lockstep::detail::view_of(*file, entry);
  const auto keep = [file, view](void*) {};
  return at::from_blob(view.data_ptr(), view.sizes(), keep, view.options());
}

void read_file(const std::string& path, const CheckpointFile& described, Snapshot& snapshot) {
  const auto file =
      std::make_shared<const data::SafetensorsFile>(lockstep::detail::open_tensors(data::MappedFile(path)));
  for (const data::SafetensorsEntry& entry : file->tensors()) {
    at::Tensor tensor = mapped_tensor(file, entry);
    if (!described.by_replica) {
      snapshot.shared.emplace(described.prefix + entry.name, std::move(tensor));
      continue;
    }
    int replica = 0;
    const std::string& name = entry.name;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), replica);
    if (error != std::errc() || end == name.data() + name.size() || *end != '/')
      damaged(path, str("'", name, "' is not an entry of a replica"));
    const std::string rest(end + 1, name.data() + name.size());
    snapshot.by_replica[described.prefix + rest].emplace(replica, std::move(tensor));
  }
}

}  // namespace

void write_checkpoint(const Snapshot& snapshot, const std::string& path, const CheckpointInfo& info) {
  const auto files = files_of(snapshot);
  const std::string texts = detail::texts_to_json(snapshot.texts);
  detail::CheckpointWriter writer(path);
  detail::require_free_space(writer.path_of(""), bytes_of(files, texts));
  for (const auto& [name, file] : files) {
    lockstep::detail::write_tensors(writer.path_of(name), file.tensors,
                                    {{lockstep::detail::kPythonFormatKey, lockstep::detail::kPythonFormat},
                                     {lockstep::detail::kVersionKey, LOCKSTEP_VERSION}});
    writer.add(file.file);
  }
  data::AtomicFile texts_file(writer.path_of(detail::kTextsName), texts.size());
  texts_file.append(texts);
  texts_file.commit();
  writer.add({.name = detail::kTextsName});
  writer.commit({.step = info.step, .snapshot_version = snapshot.version, .metrics = info.metrics});
}

Snapshot read_checkpoint(const std::string& path) {
  if (!std::filesystem::is_directory(path)) {
    throw NotFound(errors::kCheckpoint,
                   {.what = str("there is no checkpoint ", path),
                    .help = "give the path of a checkpoint's folder, such as run/step-000000001200"});
  }
  if (const std::string damage = find_damage(path); !damage.empty()) damaged(path, damage);
  const Manifest manifest = read_manifest(path);
  if (manifest.snapshot_version != Snapshot::kVersion) {
    throw Unimplemented(errors::kCheckpoint,
                        {.what = str("checkpoint ", path, " has a snapshot of version ", manifest.snapshot_version,
                                     ", this Lockstep reads version ", static_cast<int>(Snapshot::kVersion)),
                         .help = "load it with the version of Lockstep that saved it, or a newer one"});
  }
  Snapshot snapshot;
  for (const CheckpointFile& file : manifest.files) {
    const std::string file_path = str(path, '/', file.name);
    if (file.name == detail::kTextsName) {
      snapshot.texts = detail::texts_from_json(data::MappedFile(file_path).bytes(), file_path);
    } else {
      read_file(file_path, file, snapshot);
    }
  }
  return snapshot;
}

}  // namespace lockstep::train
