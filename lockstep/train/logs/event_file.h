#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/train/logs/event.h"

namespace lockstep::train {

struct EventFileOptions {
  /// Set when a training is resumed: the last step of earlier files that counts. TensorBoard drops what they hold of
  /// later steps, so that curves do not fold back.
  std::optional<std::int64_t> resume_after = {};
  /// Seconds since 1970; empty: the system's clock.
  std::function<double()> clock = {};
};

/// Writes a file that TensorBoard shows: `tensorboard --logdir FOLDER`. One process writes to a folder at a time.
///
///     EventFile events("logs/train");
///     events.scalar("epoch_loss", 3, 0.25);
///     events.flush();   // TensorBoard sees it now
///
/// Not for several threads at once.
class LOCKSTEP_EXPORT EventFile {
 public:
  /// Makes the folder if there is none, and a new file in it.
  explicit EventFile(const std::string& folder, EventFileOptions options = {});

  void scalar(std::string_view tag, std::int64_t step, double value);
  void histogram(std::string_view tag, std::int64_t step, const Histogram& values);
  void image(std::string_view tag, std::int64_t step, const Image& image);
  void text(std::string_view tag, std::int64_t step, std::string_view markdown);
  /// Hyperparameters of the run, and the tags of the metrics to show beside them. Once per run, before the metrics.
  void hparams(const HParams& values, const std::vector<std::string>& metric_tags = {});

  void flush() { out_.flush(); }
  void close() { out_.close(); }
  const std::string& path() const { return path_; }

 private:
  double now() const;
  detail::event::Moment at(std::int64_t step) const { return {now(), step}; }

  EventFileOptions options_;
  std::string path_;
  data::TFRecordWriter out_;
};

}  // namespace lockstep::train
