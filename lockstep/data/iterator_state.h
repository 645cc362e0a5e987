#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

class StageMeter;

/// What a pass over a dataset is asked for from outside. What is left out is as in a plain loop: the job's seed, and
/// the next pass.
struct LOCKSTEP_EXPORT PassOptions {
  std::optional<std::uint64_t> job_seed = std::nullopt;
  std::optional<std::uint64_t> epoch = std::nullopt;
  std::shared_ptr<StageMeter> meter = nullptr;  ///< measures the stages
};

/// A saved place in a pipeline: seeds and positions. Small, and the same on every machine.
struct LOCKSTEP_EXPORT IteratorState {
  std::string pipeline;  ///< what the pipeline looks like, to refuse the state of another one
  std::uint64_t job_seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t path = 0;
  std::int64_t consumed = 0;  ///< places passed since the iteration began: elements, and errors in their place
  std::vector<std::int64_t> position;

  std::string serialize() const;
  static IteratorState parse(const std::string& text);  ///< DataLoss if the text is not one
  bool operator==(const IteratorState&) const = default;
};

}  // namespace lockstep::data
