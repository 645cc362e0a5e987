#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep {

/// The parts of a device name such as "/job:worker/replica:0/task:1/device:GPU:0". Missing parts are empty; "cpu:0"
/// gives only a type and an index.
struct DeviceName {
  std::optional<std::string> job;   ///< "worker"; empty: none given
  std::optional<int> replica;       ///< the number after "replica:"
  std::optional<int> task;          ///< the number after "task:"
  std::string type;                 ///< "CPU", "GPU", ...; empty: none given
  std::optional<int> index;         ///< number among the devices of that type
  std::optional<int> logical = {};  ///< number among the replicas of one GPU: "gpu:0/1" is the second on the first GPU

  bool operator==(const DeviceName&) const = default;
};

/// Reads a name in any of the usual spellings: "cpu:0", "/gpu:1", "GPU", "/gpu:*", "cuda:0", "gpu:0/1",
/// "/job:worker/task:1/device:GPU:0".
/// A name that makes no sense is InvalidArgument.
LOCKSTEP_EXPORT DeviceName parse_device(std::string_view name);

/// The parts that are present, in full spelling: "/job:worker/task:1/device:GPU:0"; an open index is "*".
LOCKSTEP_EXPORT std::string to_string(const DeviceName& name);

/// Fills in the missing parts of `name` from `default_name`, then from the first CPU of this machine:
///
///     to_string(canonicalize("gpu:1"))                       // "/job:localhost/replica:0/task:0/device:GPU:1"
///     to_string(canonicalize("cpu:0", "/job:worker/task:1")) // "/job:worker/replica:0/task:1/device:CPU:0"
LOCKSTEP_EXPORT DeviceName canonicalize(std::string_view name, std::string_view default_name = "");

/// The same device seen from within its own worker: "/replica:0/device:GPU:1".
LOCKSTEP_EXPORT DeviceName canonicalize_without_job_and_task(std::string_view name);

/// `name` completed from the current device: the meaning of "" or "cpu" there.
LOCKSTEP_EXPORT DeviceName resolve(std::string_view name, std::string_view current);

/// `base`, with every part that `device` names replaced.
LOCKSTEP_EXPORT DeviceName merge(std::string_view base, std::string_view device);

/// The CPU of the machine that contains `device`.
LOCKSTEP_EXPORT DeviceName host_for(std::string_view device);

/// All devices of a machine with `num_gpus` GPUs: these, or its CPU if there are none.
LOCKSTEP_EXPORT std::vector<std::string> local_devices(int num_gpus);

/// {"cpu:0", ..., "cpu:<n-1>"}: n replicas that share the cores of this machine.
LOCKSTEP_EXPORT std::vector<std::string> cpus(int n);

/// {"gpu:0", ..., "gpu:<n-1>"}.
LOCKSTEP_EXPORT std::vector<std::string> gpus(int n);

/// {"gpu:<index>/0", ..., "gpu:<index>/<n-1>"}: n replicas that share one GPU and its memory.
LOCKSTEP_EXPORT std::vector<std::string> logical_gpus(int n, int index = 0);

/// The devices of a mirrored strategy in full spelling; replica k runs on the k-th. There must be at least one, all of
/// one worker, each named once.
LOCKSTEP_EXPORT std::vector<DeviceName> plan_mirrored_devices(const std::vector<std::string>& devices);

}  // namespace lockstep
