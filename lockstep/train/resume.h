#pragma once

#include <concepts>
#include <string>
#include <utility>

namespace lockstep::train {

/// Where a training continues from. `true`: the newest checkpoint that its callbacks wrote; if there is none yet, it starts from
/// scratch. A path: that checkpoint, or the newest one in that folder.
///
///     model.fit(batches, {.epochs = 10, .callbacks = {ls::train::model_checkpoint()}, .resume = true});
class Resume {
 public:
  Resume() = default;
  template <std::same_as<bool> B>
  Resume(B is_wanted) : is_wanted_(is_wanted) {}           // NOLINT(google-explicit-constructor)
  Resume(const char* path) : Resume(std::string(path)) {}  // NOLINT(google-explicit-constructor)
  Resume(std::string path)
      : is_wanted_(!path.empty()), path_(std::move(path)) {}  // NOLINT(google-explicit-constructor)

  /// Whether the training continues from a checkpoint.
  bool is_wanted() const { return is_wanted_; }
  const std::string& path() const { return path_; }  ///< empty: the training's own checkpoints

 private:
  bool is_wanted_ = false;
  std::string path_;
};

}  // namespace lockstep::train
