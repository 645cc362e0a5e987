#pragma once

#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/train/callback.h"

namespace lockstep::train {

/// The values of each epoch, as `fit` returns them.
struct LOCKSTEP_EXPORT History {
  int first_epoch = 0;       ///< the number of the first entry
  std::vector<Logs> epochs;  ///< "loss", "accuracy", "val_loss", ...
  std::string stopped = {};  ///< why the training ended early; empty if it did not

  /// The values of one name over the epochs; NaN where an epoch has none.
  std::vector<double> of(const std::string& name) const;
  /// The last value; NotFound if there is none.
  double last(const std::string& name) const;
};

}  // namespace lockstep::train
