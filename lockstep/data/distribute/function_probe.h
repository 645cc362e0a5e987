#pragma once

#include <map>
#include <optional>
#include <string>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Finds the files in datasets that the functions of `flat_map` and `interleave` return. Calls a function once, as
/// tracing its graph would, with an element that can be computed without calling any other user function.
class LOCKSTEP_EXPORT FunctionProbe {
 public:
  struct Seen {
    bool reads_files = false;
    std::string obstacle = {};  ///< the stage that would have to run to get an element; the function was not called
    StagePtr made = nullptr;
  };
  /// What the function of this stage reads; the same answer every time.
  const Seen& at(const Stage& function);
  /// The dataset that this stage's function returned when it was probed; null if it was not called.
  StagePtr made_by(const Stage& function) const;

 private:
  StagePtr make(const Stage& function, std::string& obstacle);
  std::optional<Element> example(const Stage& stage, std::string& obstacle);
  bool reads_files(const Stage& stage, std::string& obstacle);

  std::map<const Stage*, Seen> seen_;
};

}  // namespace lockstep::data
