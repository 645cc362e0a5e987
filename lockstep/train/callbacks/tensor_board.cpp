#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/listed.h"
#include "lockstep/strategy/detail/snapshot_entries.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/callbacks/loggers.h"
#include "lockstep/train/callbacks/logging.h"
#include "lockstep/train/logs/event_file.h"
#include "lockstep/values/const_data.h"

namespace lockstep::train {
namespace {

using detail::LastNumber;
using detail::with_learning_rate;

constexpr std::string_view kValidation = "val_";

Histogram histogram_of(const at::Tensor& values) {
  const at::Tensor flat = values.detach().cpu().to(at::kDouble).reshape({-1}).contiguous();
  return Histogram(std::span<const double>(const_data<double>(flat), static_cast<std::size_t>(flat.numel())));
}

/// An image with its pixels.
struct Picture {
  Image image;
  std::vector<std::uint8_t> pixels;
};

Picture picture_of(const std::string& tag, const at::Tensor& tensor) {
  const bool has_channels = tensor.defined() && tensor.dim() == 3;
  const bool is_bytes = tensor.defined() && tensor.scalar_type() == at::kByte;
  const bool is_picture = tensor.defined() && tensor.numel() > 0 && (is_bytes || tensor.is_floating_point()) &&
                          (tensor.dim() == 2 || (has_channels && tensor.size(0) <= 4));
  if (!is_picture) {
    throw InvalidArgument(
        errors::kStructure,
        {.what = lockstep::str("image \"", tag,
                               "\" must be [height, width] or [1 to 4 channels, height, width], of bytes or "
                               "of floating-point numbers from 0 to 1, got ",
                               tensor.defined() ? lockstep::detail::form_of(tensor) : "an undefined tensor"),
         .where = "tensor_board",
         .help = "give a batch of images one by one, under tags of their own"});
  }
  at::Tensor pixels = has_channels ? tensor.permute({1, 2, 0}) : tensor.unsqueeze(2);
  if (!is_bytes) pixels = pixels.to(at::kFloat).nan_to_num(0).clamp(0, 1).mul(255).round().to(at::kByte);
  pixels = pixels.cpu().contiguous();
  const auto* const bytes = const_data<std::uint8_t>(pixels);
  return {.image = {.height = static_cast<int>(pixels.size(0)),
                    .width = static_cast<int>(pixels.size(1)),
                    .channels = static_cast<int>(pixels.size(2))},
          .pixels = std::vector<std::uint8_t>(bytes, bytes + pixels.numel())};
}

/// A folder of event files, whose events have numbers of one kind: a resumed training drops those behind its checkpoint by their
/// numbers.
class Run {
 public:
  explicit Run(std::string folder) : folder_(std::move(folder)) {}

  /// Without an event a run has no file; one that is resumed starts a file at once.
  void begin(bool writes) {
    const auto resume_after = last_.begin();
    file_.reset();
    writes_ = writes;
    if (writes && resume_after) file_.emplace(folder_, EventFileOptions{.resume_after = resume_after});
  }
  /// Makes values of `logs` events with `tag_of(name)`; without one they are left out.
  template <class F>
  void write(std::int64_t number, const Logs& logs, F&& tag_of) {
    for (const auto& [name, value] : logs) {
      const std::string tag = tag_of(name);
      if (!tag.empty()) add(number, [&, shown = value](EventFile& file) { file.scalar(tag, number, shown); });
    }
    flush();
  }
  /// What `write(file)` writes belongs to this number. Called on every worker; only the chief writes.
  template <class F>
  void add(std::int64_t number, F&& write) {
    last_.value = number;
    if (!writes_) return;
    if (!file_) file_.emplace(folder_);
    write(*file_);
  }
  /// A checkpoint that counts these events may follow.
  void flush() {
    if (file_) file_->flush();
  }
  void end() {
    if (file_) file_->close();
    file_.reset();
  }

  std::int64_t last() const { return last_.value; }
  void restore(std::int64_t last) { last_.restore(last); }

 private:
  std::string folder_;
  bool writes_ = false;
  LastNumber last_;
  std::optional<EventFile> file_;
};

class TensorBoardWriter final : public Callback {
 public:
  explicit TensorBoardWriter(TensorBoardOptions options)
      : options_(std::move(options)),
        train_(options_.folder + "/train"),
        validation_(options_.folder + "/validation"),
        steps_(options_.folder + "/steps") {
    detail::require_logger("tensor_board", options_.every_steps, "folder", options_.folder);
    detail::require_option(options_.histograms_every >= 0, "tensor_board",
                           str("histograms_every must be >= 0, got ", options_.histograms_every),
                           "leave it out for a training without histograms");
  }
  std::string name() const override { return str("tensor_board ", options_.folder); }

  Decision train_begins(const Training& training) override {
    if (options_.histograms_every > 0) require_parts(training);
    for (Run* run : {&train_, &validation_, &steps_}) run->begin(training.strategy.is_chief());
    return {};
  }
  Decision batch_ends(const Training& training) override {
    if (options_.every_steps == 0 || training.step % options_.every_steps != 0) return {};
    const Logs values = training.strategy.is_chief() ? training.running_logs() : Logs{};
    steps_.write(training.step, with_learning_rate(values, training),
                 [](const std::string& name) { return "batch_" + name; });
    return {};
  }
  Decision epoch_ends(const Training& training, const Logs& logs) override {
    const Logs values = with_learning_rate(logs, training);
    if (train_.last() < 0 && !options_.hparams.empty()) write_hparams(training, values);
    train_.write(training.epoch, values, tag_of_training);
    write_content(training);
    validation_.write(training.epoch, logs, [&](const std::string& name) {
      return name.starts_with(kValidation) ? "epoch_" + name.substr(kValidation.size()) : std::string();
    });
    return {};
  }
  Decision train_ends(const Training&) override {
    for (Run* run : {&train_, &validation_, &steps_}) run->end();
    return {};
  }

  std::string to_text() const override {
    return nlohmann::json{{"train", train_.last()}, {"validation", validation_.last()}, {"steps", steps_.last()}}
        .dump();
  }
  void from_text(const std::string& text) override {
    const auto last = nlohmann::json::parse(text);
    train_.restore(last.at("train"));
    validation_.restore(last.at("validation"));
    steps_.restore(last.at("steps"));
  }

 private:
  static std::string tag_of_training(const std::string& name) {
    return name.starts_with(kValidation) ? std::string() : "epoch_" + name;
  }

  void require_parts(const Training& training) const {
    for (const std::string& wanted : options_.histograms_of) {
      if (std::ranges::find(training.parts, wanted, &NamedState::name) != training.parts.end()) continue;
      const std::string known = data::listed(training.parts, ", ", [](const NamedState& part) { return part.name; });
      throw InvalidArgument(errors::kBadOption, {.what = str("the training has no part \"", wanted, "\""),
                                                 .where = "tensor_board",
                                                 .seen = "it has " + known,
                                                 .help = "name those to show in .histograms_of; a loop of your own "
                                                         "names its model in .parts"});
    }
  }

  /// Once for a run, before its first values.
  void write_hparams(const Training& training, const Logs& values) {
    std::vector<std::string> tags;
    for (const auto& [name, value] : values) {
      if (std::string tag = tag_of_training(name); !tag.empty()) tags.push_back(std::move(tag));
    }
    train_.add(training.epoch, [&](EventFile& file) { file.hparams(options_.hparams, tags); });
  }

  /// Histograms, pictures and texts.
  void write_content(const Training& training) {
    const bool is_chief = training.strategy.is_chief();
    const std::int64_t epoch = training.epoch;
    if (options_.histograms_every > 0 && (epoch + 1) % options_.histograms_every == 0 && is_chief) {
      for (const NamedState& part : training.parts) {
        if (std::ranges::find(options_.histograms_of, part.name) == options_.histograms_of.end()) continue;
        Snapshot snapshot;
        part.state->capture(snapshot, part.name);
        for (const auto& [name, tensor] : snapshot.shared) {
          if (!tensor.is_floating_point()) continue;
          train_.add(epoch, [&, tag = name, values = tensor](EventFile& file) {
            file.histogram(tag, epoch, histogram_of(values));
          });
        }
      }
    }
    const auto images = options_.images ? options_.images(training) : std::map<std::string, at::Tensor>();
    for (const auto& image : images) {
      train_.add(epoch, [&](EventFile& file) {
        Picture picture = picture_of(image.first, image.second);
        picture.image.pixels = picture.pixels;
        file.image(image.first, epoch, picture.image);
      });
    }
    const auto texts = options_.texts ? options_.texts(training) : std::map<std::string, std::string>();
    for (const auto& text : texts)
      train_.add(epoch, [&](EventFile& file) { file.text(text.first, epoch, text.second); });
    train_.flush();
  }

  TensorBoardOptions options_;
  Run train_, validation_, steps_;
};

}  // namespace

std::shared_ptr<Callback> tensor_board(const TensorBoardOptions& options) {
  return std::make_shared<TensorBoardWriter>(options);
}

}  // namespace lockstep::train
