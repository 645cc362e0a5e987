#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::train {

/// A file of a checkpoint.
struct CheckpointFile {
  std::string name;          ///< within the checkpoint's folder
  std::uint64_t bytes = 0;   ///< its size
  std::uint32_t crc32c = 0;  ///< its checksum
  std::string prefix = {};   ///< the names of its entries begin with this in the snapshot, and not in the file
  /// Whether it has the entries by replica; those are named "<replica>/<name>" in the file.
  bool by_replica = false;

  bool operator==(const CheckpointFile&) const = default;
};

/// What a checkpoint holds: its file manifest.json, which has a checksum of its own.
struct Manifest {
  static constexpr int kVersion = 1;  ///< number of the newest layout

  std::int64_t step = 0;                       ///< training steps so far
  int snapshot_version = 1;                    ///< the layout of the snapshot
  std::string lockstep_version = {};           ///< the Lockstep that saved it
  std::string saved_at = {};                   ///< UTC: "2026-11-19T08:00:00Z"
  std::map<std::string, double> metrics = {};  ///< finite ones only
  std::vector<std::string> left_out = {};      ///< parts that were removed to save space
  std::vector<CheckpointFile> files = {};      ///< all files but the manifest

  /// Whether a training can continue from it.
  bool is_complete() const { return left_out.empty(); }
  /// The size of all files.
  std::uint64_t bytes() const;

  bool operator==(const Manifest&) const = default;
};

namespace detail {

inline constexpr const char* kManifestName = "manifest.json";

std::string manifest_text(const Manifest& manifest);

/// DataLoss if the text is not what `manifest_text` wrote, Unimplemented if a newer Lockstep did. `path` is for messages.
Manifest parse_manifest(std::string_view text, const std::string& path);

}  // namespace detail
}  // namespace lockstep::train
