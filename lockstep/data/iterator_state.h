#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

class StageMeter;

/// Options of a pass over a dataset. The defaults are those of a plain loop: the job's seed and the next pass.
struct LOCKSTEP_EXPORT PassOptions {
  std::optional<std::uint64_t> job_seed = std::nullopt;
  std::optional<std::uint64_t> epoch = std::nullopt;
  std::shared_ptr<StageMeter> meter = nullptr;  ///< measures the stages
};

/// A saved position in a pipeline: seeds and counts. Small, and the same on every machine.
struct LOCKSTEP_EXPORT IteratorState {
  std::string pipeline;  ///< fingerprint of the pipeline, to reject another one's state
  std::uint64_t job_seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t path = 0;
  std::int64_t consumed = 0;  ///< places passed since the iteration began: elements and errors
  std::vector<std::int64_t> position;

  std::string serialize() const;
  static IteratorState parse(const std::string& text);  ///< DataLoss if the text is malformed
  bool operator==(const IteratorState&) const = default;
};

}  // namespace lockstep::data
