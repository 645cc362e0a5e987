#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/train/logs/histogram.h"
#include "lockstep/train/logs/png.h"

namespace lockstep::train {

/// A hyperparameter of a run.
using HParam = std::variant<bool, double, std::string>;
using HParams = std::map<std::string, HParam>;  ///< hyperparameters by name

}  // namespace lockstep::train

// Records of TensorBoard's event files, as bytes: messages of type tensorboard.Event.
namespace lockstep::train::detail::event {

/// When and at which step of the training something was logged.
struct Moment {
  double wall_time = 0;  ///< seconds since 1970
  std::int64_t step = 0;
};

std::string file_version(double wall_time);  ///< the first record of every file
/// Starts a run anew: TensorBoard drops what earlier files of the folder hold of this step and later ones.
std::string session_start(Moment moment);
std::string scalar(Moment moment, std::string_view tag, float value);
std::string histogram(Moment moment, std::string_view tag, const train::Histogram& values);
std::string image(Moment moment, std::string_view tag, const train::Image& image);
std::string text(Moment moment, std::string_view tag, std::string_view text);

/// The records that show a run in TensorBoard's table of hyperparameters, together with these metrics.
std::vector<std::string> hparams(double wall_time, const train::HParams& values,
                                 const std::vector<std::string>& metric_tags);

}  // namespace lockstep::train::detail::event
