#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/data/format/tfrecord.h"

// Event files, read as far as curves need it: Lockstep's own, and those of TensorFlow and PyTorch.
namespace lockstep::train::detail::event {

/// What an event says about a tag.
struct Value {
  enum class Kind { Scalar, Histogram, Image, Tensor, Other };
  std::string tag;
  Kind kind = Kind::Other;
  double scalar = 0;
};

struct Event {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string file_version = {};
  bool starts_session = false;  ///< values of this step and later ones, of files before, do not count any more
  std::vector<Value> values = {};
};

std::string_view to_string(Value::Kind kind);

/// DataLoss if `record` is not a valid event.
Event read_event(std::string_view record);

/// The events of a file that can be read. What a writer has not finished, or damage, ends them without an error.
struct Events {
  std::vector<Event> events;
  std::string damage = {};  ///< what ends them early; empty at the end of the file
};
Events read_events(const std::string& path);

}  // namespace lockstep::train::detail::event
