#pragma once

#include <string>
#include <vector>

namespace lockstep::app {

/// The arguments of `lockstep plot`.
struct PlotRequest {
  std::vector<std::string> logs;   ///< folders or files; each is a run
  std::string out = "curves.svg";  ///< "-": standard output
  std::vector<std::string> only;   ///< metrics; none: all
  std::string title;
  double smoothing = 0;
  bool log_scale = false;
};

/// Draws curves of trainings into an SVG file. Returns the exit code; errors are thrown.
int plot(const PlotRequest& request);

}  // namespace lockstep::app
