#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/train/logs/curves.h"

namespace lockstep::train {

struct ChartOptions {
  std::string title = {};
  double smoothing = 0;    ///< 0 to 0.999; the values themselves stay, pale
  bool log_scale = false;  ///< of y; values that are not positive are left out
  bool log_x = false;      ///< the same for x
};

/// The curves as an SVG picture: a chart for each metric, with training and validation of all runs in it ("loss", "val_loss" and
/// "epoch_loss" share one). Uses nothing outside of the file, and is readable on light and on dark pages.
LOCKSTEP_EXPORT std::string svg_of(const std::vector<Curve>& curves, const ChartOptions& options = {});

namespace detail {

/// "loss" of "epoch_val_loss".
std::string metric_of(const std::string& name);

/// Round numbers from about `low` to about `high`, some five of them, for the marks of an axis.
std::vector<double> axis_marks(double low, double high);

}  // namespace detail
}  // namespace lockstep::train
