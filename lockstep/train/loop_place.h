#pragma once

#include <cstdint>
#include <string>

#include "lockstep/train/history.h"

namespace lockstep::train::detail {

/// Where a loop is, and what it has seen so far: what a checkpoint keeps as text.
struct LoopPlace {
  enum class Pass { None, Training, Validation };

  std::int64_t step = 0;
  int epoch = 0;  ///< that is open, or that comes next
  bool is_in_epoch = false;

  // Within the open epoch.
  std::int64_t batch = 0, rows = 0;
  Pass pass = Pass::None;            ///< that is open
  int trainings = 0;                 ///< training passes that have ended
  int validation_begins = 0;         ///< calls of `validation_begins`
  int validations = 0;               ///< validation passes that have ended
  Logs train_logs, validation_logs;  ///< of the passes that have ended

  bool stopping = false, ending_epoch = false;
  double seconds = 0, epoch_seconds = 0, input_wait_seconds = 0;
  History history;
};

std::string to_text(const LoopPlace& place);
/// Throws nlohmann's exceptions if the text is not one.
LoopPlace place_of(const std::string& text);

}  // namespace lockstep::train::detail
