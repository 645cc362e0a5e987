#pragma once

#include <optional>
#include <string>

#include "tests/golden/case.h"

// The cases in which Lockstep deliberately differs from TensorFlow, each kind with its reason. They are recognized by
// their fields, never by their ids.
namespace lockstep::golden {

struct Exception {
  enum class Kind {
    Decided,      ///< TensorFlow's result is an accident (the case is marked as a quirk) and ours is better
    Order,        ///< the one order of summation is a tree
    Meaningless,  ///< C++'s types leave nothing to test
  };

  Kind kind;
  std::string reason;
  /// The expected result instead; nothing: the case cannot be run.
  std::optional<json> expect;
};

/// How a case is an exception, if it is one.
std::optional<Exception> exception_for(const Case& given);

}  // namespace lockstep::golden
