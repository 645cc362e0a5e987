#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// The conditions of a measurement: a different program, CPU or number of cores needs a measurement of its own.
struct TuneKey {
  std::string program;  ///< its path, or the name that it gives itself
  std::string cpu;      ///< cpu_name()
  int cores = 1;        ///< usable_cores()
};

/// `name`, or the path by which this program was called. A link keeps its own name.
LOCKSTEP_EXPORT std::string program_key(const std::string& name);
/// Notes the key with which `best_cpus` was called, for `lockstep tune`, which measures this process.
LOCKSTEP_EXPORT void note_program_key(const std::string& key);
/// The noted key, program_key("") if there is none, or "" if there are several different ones.
LOCKSTEP_EXPORT std::string noted_program_key();
/// The key of a program on this machine.
LOCKSTEP_EXPORT TuneKey key_here(std::string program);

/// The text of a file with a line for each key: replicas, cores, CPU and program, with a tab between. Lines that cannot be read are
/// skipped.
std::optional<int> find_replicas(std::string_view text, const TuneKey& key);
/// The text with the line of `key` replaced or added.
std::string with_replicas(std::string_view text, const TuneKey& key, int replicas);

/// $XDG_CACHE_HOME/lockstep/replicas, or ~/.cache/lockstep/replicas; empty without either.
std::string remembered_replicas_path();
LOCKSTEP_EXPORT std::optional<int> remembered_replicas(const TuneKey& key);
/// Replaces the file as a whole. FailedPrecondition if it cannot be written.
LOCKSTEP_EXPORT void remember_replicas(const TuneKey& key, int replicas);

}  // namespace lockstep
