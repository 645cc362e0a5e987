#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/train/checkpoint/manifest.h"

// A folder of checkpoints. Each is a folder in it that appears at once, when all of its bytes are on the disk:
//
//     checkpoints/step-000000001200/manifest.json           sizes and checksums of the others
//                                   model.safetensors       entries "model/..." of the snapshot
//                                   model.replicas.safetensors
//                                   texts.json
namespace lockstep::train {

/// A checkpoint in a folder.
struct CheckpointEntry {
  std::int64_t step = 0;  ///< training steps before it
  std::string path = {};  ///< path of its folder

  bool operator==(const CheckpointEntry&) const = default;
};

/// The checkpoints in a folder, oldest first, whether or not they are valid. None if there is no folder, and none while `lockstep
/// tune` measures the program: it then starts from the beginning. One that a process was killed while replacing is listed under its
/// temporary name.
LOCKSTEP_EXPORT std::vector<CheckpointEntry> list_checkpoints(const std::string& folder);

/// Reads the manifest of a checkpoint. NotFound, DataLoss or Unimplemented if it cannot be read.
LOCKSTEP_EXPORT Manifest read_manifest(const std::string& checkpoint);

/// What is wrong with a checkpoint, in one line: "model.safetensors is missing". Reads all of it. Empty if nothing is.
LOCKSTEP_EXPORT std::string find_damage(const std::string& checkpoint);

/// The newest checkpoint that can be resumed: valid, and with all parts. Logs a line for each newer one that is damaged.
LOCKSTEP_EXPORT std::optional<CheckpointEntry> newest_checkpoint(const std::string& folder);

namespace detail {

std::string checkpoint_name(std::int64_t step);  ///< "step-000000001200"

/// The ending of a checkpoint's name while another one takes its place: ".step-000000001200.71-0.replaced". Only on file systems
/// that cannot exchange two names.
inline constexpr std::string_view kReplaced = ".replaced";
/// "step-000000001200", or nothing if the name is not that of a checkpoint that is being replaced.
std::string name_of_replaced(std::string_view name);

/// "model.safetensors", "model.replicas.safetensors"
inline std::string part_file_name(const std::string& part, bool by_replica) {
  return part + (by_replica ? ".replicas.safetensors" : ".safetensors");
}

/// Removes a checkpoint. If the process is killed meanwhile, the checkpoint is there or not, never a part of it.
void remove_checkpoint(const std::string& checkpoint);
/// Removes the files of a part, whose name the manifest keeps in `left_out`. Does nothing if it has none.
void leave_out_part(const std::string& checkpoint, const std::string& part);
/// Removes what killed processes have left unfinished, and gives a checkpoint that they were about to replace its name back. Only
/// while no other process writes to the folder.
void remove_unfinished(const std::string& folder);

/// ResourceExhausted, before anything is written, if the disk of `folder` has less space than `bytes`.
void require_free_space(const std::string& folder, std::uint64_t bytes);

/// Writes a file, durably.
void write_text(const std::string& path, const std::string& text);

/// The file, with its size and its checksum.
CheckpointFile measured(CheckpointFile file, const std::string& folder);

/// Writes a checkpoint.
///
///     CheckpointWriter writer(path);
///     write_something(writer.path_of("model.safetensors"));
///     writer.add({.name = "model.safetensors", .prefix = "model/"});
///     writer.commit({.step = 1200});    // without it nothing stays
class CheckpointWriter {
 public:
  /// Makes the folders on the way to `checkpoint`, which may exist: it is replaced at once.
  explicit CheckpointWriter(std::string checkpoint);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Where to write a file, durably: AtomicFile does.
  std::string path_of(const std::string& name) const;
  const std::string& folder() const { return temporary_; }  ///< of all files, until the checkpoint has its name
  /// Takes up a file that is written; finds out its size and its checksum.
  void add(CheckpointFile file) { add_measured(measured(std::move(file), temporary_)); }
  void add_measured(CheckpointFile file) { files_.push_back(std::move(file)); }
  /// Writes the manifest, with the files, the time and the version of Lockstep, and gives the checkpoint its name.
  void commit(Manifest manifest);

 private:
  std::string path_;
  std::string temporary_;  ///< empty once it has its real name
  std::vector<CheckpointFile> files_;
};

}  // namespace detail
}  // namespace lockstep::train
