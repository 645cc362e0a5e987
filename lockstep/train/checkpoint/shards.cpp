#include "lockstep/train/checkpoint/shards.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/save/saved_metadata.h"
#include "lockstep/nn/save/tensor_file.h"
#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/checkpoint/texts.h"
#include "lockstep/version.h"

namespace lockstep::train::detail {
namespace {

namespace fs = std::filesystem;

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

std::string file_name(const std::string& part, bool by_replica, const Shard& shard) {
  return part_file_name(shard.workers == 1 ? part : str(part, '.', shard.worker, "-of-", shard.workers), by_replica);
}

std::map<std::string, TensorFile> files_of(const Snapshot& snapshot, const Shard& shard) {
  std::map<std::string, TensorFile> files;
  const auto add = [&](const Place& place, bool by_replica, const std::string& name, const at::Tensor& tensor) {
    const std::string file = file_name(place.part, by_replica, shard);
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

std::uint64_t bytes_of(const at::Tensor& tensor) {
  constexpr std::uint64_t kPerTensor = 256;  // in the header
  return kPerTensor + (tensor.defined() ? tensor.nbytes() : 0);
}

std::string done_mark(const std::string& folder, int worker) { return str(folder, "/worker-", worker, ".json"); }
std::string failed_mark(const std::string& folder, int worker) { return str(folder, "/worker-", worker, ".failed"); }

/// Throws unless they are here, as they were written.
void require_here(const std::string& folder, const CheckpointFile& file, int worker) {
  std::error_code failed;
  const std::uintmax_t bytes = fs::file_size(str(folder, '/', file.name), failed);
  if (!failed && bytes == file.bytes) return;
  throw Unavailable(errors::kCheckpoint,
                    {.what = str("worker ", worker, " has written ", file.name, " with ", file.bytes,
                                 " bytes, which the chief does not see"),
                     .where = folder,
                     .seen = failed ? failed.message() : str("there are ", bytes, " bytes"),
                     .help = "write sharded checkpoints to a file system on which all workers see the same files"});
}

}  // namespace

Snapshot share_of(Snapshot captured, const Shard& shard) {
  if (shard.workers == 1) return captured;
  struct Entry {
    std::uint64_t bytes;
    std::string name;
  };
  std::vector<Entry> entries;
  for (const auto& [name, tensor] : captured.shared) entries.push_back({bytes_of(tensor), name});
  // The largest first, each to the worker that has least. All workers come to the same result.
  std::ranges::sort(
      entries, [](const Entry& a, const Entry& b) { return std::tie(b.bytes, a.name) < std::tie(a.bytes, b.name); });
  std::vector<std::uint64_t> loads(static_cast<std::size_t>(shard.workers));
  for (const Entry& entry : entries) {
    const auto least = std::ranges::min_element(loads);
    *least += entry.bytes;
    if (least - loads.begin() != shard.worker) captured.shared.erase(entry.name);
  }
  if (shard.worker != 0) captured.texts.clear();
  return captured;
}

std::uint64_t bytes_to_write(const Snapshot& snapshot) {
  constexpr std::uint64_t kPerCheckpoint = 16 << 10;  // manifest, whole blocks of the disk
  std::uint64_t bytes = kPerCheckpoint;
  for (const auto& [name, tensor] : snapshot.shared) bytes += bytes_of(tensor);
  for (const auto& [name, tensors] : snapshot.by_replica) {
    for (const auto& [replica, tensor] : tensors) bytes += bytes_of(tensor);
  }
  for (const auto& [name, text] : snapshot.texts) bytes += name.size() + text.size();
  return bytes;
}

std::vector<CheckpointFile> write_files(const Snapshot& share, const std::string& folder, const Shard& shard) {
  std::vector<CheckpointFile> written;
  const std::string texts = shard.worker == 0 ? texts_to_json(share.texts) : std::string();
  for (auto& [name, file] : files_of(share, shard)) {
    lockstep::detail::write_tensors(str(folder, '/', name), file.tensors,
                                    {{lockstep::detail::kPythonFormatKey, lockstep::detail::kPythonFormat},
                                     {lockstep::detail::kVersionKey, LOCKSTEP_VERSION}});
    written.push_back(measured(file.file, folder));
  }
  if (shard.worker == 0) {
    write_text(str(folder, '/', kTextsName), texts);
    written.push_back(measured({.name = kTextsName}, folder));
  }
  return written;
}

void write_part(const Snapshot& share, const std::string& folder, const Shard& shard) {
  try {
    const Manifest part{.files = write_files(share, folder, shard)};
    write_text(done_mark(folder, shard.worker), manifest_text(part));
  } catch (const std::exception& error) {
    const auto* const known = dynamic_cast<const Error*>(&error);
    try {
      write_text(failed_mark(folder, shard.worker), known ? known->text().what : error.what());
    } catch (const std::exception&) {
      // The disk may be full or gone; the chief gives up after a while.
    }
    throw;
  }
}

std::vector<CheckpointFile> take_part(const std::string& folder, int worker, const Deadline& deadline,
                                      const std::atomic<bool>& is_abandoned) {
  constexpr std::chrono::milliseconds kLook(5);
  constexpr std::chrono::seconds kGrace(5);
  std::optional<Deadline> end;
  const std::string done = done_mark(folder, worker), failed = failed_mark(folder, worker);
  for (std::error_code ignored; !fs::exists(done, ignored); std::this_thread::sleep_for(kLook)) {
    if (fs::exists(failed, ignored)) {
      throw Unavailable(
          errors::kCheckpoint,
          {.what = str("worker ", worker, " could not write its part of a checkpoint: ", file_text(failed)),
           .where = folder,
           .help = "fix the cause; existing checkpoints are untouched"});
    }
    if (is_abandoned && !end) end = Deadline::after(kGrace);
    if (!deadline.expired() && !(end && end->expired())) continue;
    throw DeadlineExceeded(
        errors::kCheckpoint,
        {.what = str("worker ", worker, " has not written its part of a checkpoint in time"),
         .where = folder,
         .help = "look at that worker and its disk, or raise .shard_timeout; existing checkpoints are "
                 "untouched"});
  }
  const Manifest part = parse_manifest(data::MappedFile(done).bytes(), done);
  for (const CheckpointFile& file : part.files) require_here(folder, file, worker);
  fs::remove(done);
  return part.files;
}

}  // namespace lockstep::train::detail
