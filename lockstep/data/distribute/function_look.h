#pragma once

#include <map>
#include <optional>
#include <string>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Looks for files in the datasets that functions of `flat_map` and `interleave` make. A function is called once, with
/// an element that can be had without running anything else of the user's, as its graph would be traced.
class LOCKSTEP_EXPORT FunctionLook {
 public:
  struct Seen {
    bool reads_files = false;
    std::string obstacle = {};  ///< the stage that would have to run to get an element, so the function was not called
    StagePtr made = nullptr;
  };
  /// What the function of this stage does; the same answer every time.
  const Seen& at(const Stage& function);
  /// The dataset that the function of this stage made when it was looked at; null where it was not called.
  StagePtr made_by(const Stage& function) const;

 private:
  StagePtr make(const Stage& function, std::string& obstacle);
  std::optional<Element> example(const Stage& stage, std::string& obstacle);
  bool reads_files(const Stage& stage, std::string& obstacle);

  std::map<const Stage*, Seen> seen_;
};

}  // namespace lockstep::data
