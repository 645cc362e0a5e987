#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/strategy/snapshot.h"

// For those that implement Stateful: adding entries to a snapshot, and reading them back.
namespace lockstep::detail {

/// Throws inside of run, and while another thread is inside of it. `operation` is "capture" or "restore".
LOCKSTEP_EXPORT void require_between_runs(const Strategy& strategy, const char* operation);

/// Adds a copy. Throws if the snapshot has an entry of this name.
LOCKSTEP_EXPORT void put_shared(Snapshot& into, const std::string& name, const at::Tensor& value);
LOCKSTEP_EXPORT void put_text(Snapshot& into, const std::string& name, std::string text);
LOCKSTEP_EXPORT void put_number(Snapshot& into, const std::string& name, double value);
LOCKSTEP_EXPORT void put_count(Snapshot& into, const std::string& name, std::int64_t value);
/// `values`: of each local replica.
LOCKSTEP_EXPORT void put_by_replica(Snapshot& into, const Strategy& strategy, const std::string& name,
                                    const std::vector<at::Tensor>& values);

/// What a snapshot has under one name. Each call throws if there is no such entry or if it does not fit.
class LOCKSTEP_EXPORT SnapshotReader {
 public:
  /// `part`: the first part of the names.
  SnapshotReader(const Snapshot& from, std::string part) : from_(&from), part_(std::move(part)) {}

  /// `like`: what the program has, whose shape and dtype it must have.
  const at::Tensor& shared(const std::string& entry, const at::Tensor& like);
  const at::Tensor& shared(const std::string& entry);
  bool has_shared(const std::string& entry) const;
  const std::string& text(const std::string& entry);
  double number(const std::string& entry);
  std::int64_t count(const std::string& entry);
  /// Those of the local replicas. Throws for a snapshot of another number of replicas.
  std::vector<at::Tensor> by_replica(const std::string& entry, const Strategy& strategy);
  /// Those of all replicas that the snapshot is of: it must be gathered.
  std::vector<at::Tensor> of_all_replicas(const std::string& entry);
  /// How many replicas the snapshot is of; 0: it has no entries by replica.
  int replicas() const;
  /// Whether the snapshot is of as many replicas as the strategy has.
  bool fits(const Strategy& strategy) const;

  /// The entries that are shared, without the name of the part.
  std::vector<std::string> shared_names() const;
  /// Throws if the part has entries that were not read: they belong to another program.
  void require_all_read() const;
  /// Throws that an entry does not fit.
  [[noreturn]] void refuse(const std::string& entry, const std::string& what) const;

 private:
  std::string name_of(const std::string& entry);

  const Snapshot* from_;
  std::string part_;
  std::set<std::string> read_;
};

/// "float32[3, 4]"
LOCKSTEP_EXPORT std::string form_of(const at::Tensor& tensor);

}  // namespace lockstep::detail
