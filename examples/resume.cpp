// Continues trainings: one that is interrupted in the middle of an epoch, one with more epochs, and one from an older
// checkpoint.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "devices.h"
#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;

nn::Sequential make_net() {
  return nn::Sequential(nn::Flatten(), nn::Linear(64, 128), nn::ReLU(), nn::Dropout(0.3), nn::Linear(128, 10));
}

/// How often a row was seen: state of this program, which is saved and restored with everything else.
struct RowCount : ls::Stateful {
  void capture(ls::Snapshot& into, const std::string& name) const override {
    into.texts[name + "/rows"] = std::to_string(rows);
  }
  void restore(const ls::Snapshot& from, const std::string& name) override {
    rows = std::stoll(from.texts.at(name + "/rows"));
  }
  std::int64_t rows = 0;
};

struct Plan {
  int epochs = 4;
  std::int64_t interrupted_after = -1;  ///< this step
  ls::train::Resume resume = true;
};

/// The loss in the end, with the number of rows.
void train(const std::vector<std::string>& devices, const std::string& folder, const Plan& plan) {
  torch::manual_seed(5);
  const auto [known, unseen] = split_digits(load_digits());
  ls::MirroredStrategy strategy({.devices = devices, .seed = 5});
  auto net = strategy.make(make_net);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.003));
  ls::train::Model model(net, optimizer,
                         {.loss = ls::train::losses::cross_entropy(), .metrics = {ls::train::metrics::accuracy()}});
  RowCount count;
  const auto follow = [&](const ls::train::Training& training) -> ls::train::Decision {
    count.rows += 60;
    if (training.step == plan.interrupted_after) throw std::runtime_error("the power is gone");
    return {};
  };
  const auto history =
      model.fit(ls::data::from_tensor_slices(known).shuffle(known.count()).batch(60, {.drop_remainder = true}),
                {.epochs = plan.epochs,
                 .validation = ls::data::from_tensor_slices(unseen).batch(unseen.count()),
                 .callbacks = {ls::train::model_checkpoint({.folder = folder, .every = {.steps = 10}}),
                               ls::train::lambda({.batch_ends = follow})},
                 .parts = {{"count", count}},
                 .resume = plan.resume});
  std::printf("loss %.6f after %lld steps and %lld rows\n\n", history.last("loss"),
              static_cast<long long>(optimizer.steps()), static_cast<long long>(count.rows));
}

int main(int argc, char** argv) {
  const auto devices = devices_of(argc, argv, 2);
  for (const char* const folder : {"resume_whole", "resume_checkpoints", "resume_older"})
    std::filesystem::remove_all(folder);

  train(devices, "resume_whole", {});  // to compare with
  try {
    train(devices, "resume_checkpoints", {.interrupted_after = 57});
  } catch (const std::exception& error) {
    std::printf("Interrupted: %s\n", error.what());
  }
  train(devices, "resume_checkpoints", {});             // the same loss
  train(devices, "resume_checkpoints", {.epochs = 6});  // two more epochs
  const auto older = ls::train::list_checkpoints("resume_whole").front().path;
  train(devices, "resume_older", {.resume = older});  // in a separate folder
}
