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
  /// The seed that all stages without one of their own derive theirs from.
  std::optional<std::uint64_t> job_seed = std::nullopt;
  std::optional<std::uint64_t> epoch = std::nullopt;  ///< the number of the pass
  std::shared_ptr<StageMeter> meter = nullptr;        ///< measures the stages
};

/// A saved position in a pipeline: seeds and counts. Small, and the same on every machine.
struct LOCKSTEP_EXPORT IteratorState {
  std::string pipeline;                ///< what the pipeline looks like, to refuse the state of another one
  std::uint64_t job_seed = 0;          ///< the seed that stages derived theirs from
  std::uint64_t epoch = 0;             ///< the number of the pass
  std::uint64_t path = 0;              ///< the place of a nested pipeline; 0: not nested
  std::int64_t consumed = 0;           ///< places passed since the iteration began: elements, and errors in their place
  std::vector<std::int64_t> position;  ///< positions of the stages

  /// As text with a checksum; `parse` reads it back.
  std::string serialize() const;
  static IteratorState parse(const std::string& text);  ///< DataLoss if the text is malformed
  bool operator==(const IteratorState&) const = default;
};

}  // namespace lockstep::data
