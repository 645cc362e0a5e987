#include "lockstep/train/checkpoint/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <charconv>
#include <filesystem>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/nn/save/tensor_file.h"
#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/checkpoint/shards.h"
#include "lockstep/train/checkpoint/texts.h"

namespace lockstep::train {
namespace {

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
  if (is_being_tuned()) return;
  detail::CheckpointWriter writer(path);
  detail::require_free_space(writer.folder(), detail::bytes_to_write(snapshot));
  for (const CheckpointFile& file : detail::write_files(snapshot, writer.folder())) writer.add_measured(file);
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
