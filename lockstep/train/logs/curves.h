#pragma once

#include <string>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::train {

struct CurvePoint {
  double x = 0, y = 0;

  bool operator==(const CurvePoint&) const = default;
};

/// A value over the steps or epochs of a run.
struct Curve {
  std::string run = {};   ///< "first", "first/train"
  std::string name = {};  ///< "loss", "val_loss", "epoch_loss"
  std::vector<CurvePoint> points = {};
};

/// The curves in a log: a CSV file, JSON lines, an event file, or all of them in a folder and those in it. `run` names it; the runs of
/// a folder's folders begin with it. NotFound if there is no such file, InvalidArgument if it is no log.
LOCKSTEP_EXPORT std::vector<Curve> read_curves(const std::string& path, const std::string& run);

/// A running average as TensorBoard draws it: `weight` is that of what came before, from 0 (none) to 0.999. Points
/// that are not finite stay what they are and do not count.
LOCKSTEP_EXPORT std::vector<CurvePoint> smoothed(const std::vector<CurvePoint>& points, double weight);

/// Few enough points to draw: the least and the greatest of each of `parts` equal parts, so that no peak is lost.
LOCKSTEP_EXPORT std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points, std::size_t parts);

}  // namespace lockstep::train
