// Trains a network to read handwritten digits on two replicas: `demo [replicas] [--device gpu] [--folder DIR]`. Then the same
// training runs once more as a program of its own, which is killed in the middle and continued here: the weights have the same bits.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <lockstep/train/logs/chart.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "devices.h"
#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;
namespace fs = std::filesystem;

constexpr int kEpochs = 10, kBatch = 50, kKillAfterEpoch = 3;

struct Net : nn::Module {
  Net() {
    register_module("see", see);
    register_module("decide", decide);
  }
  torch::Tensor forward(const torch::Tensor& images) { return decide->forward(see->forward(images)); }

  nn::Sequential see{nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)), nn::ReLU(),
                     nn::Conv2d(nn::Conv2dOptions(16, 48, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2)};
  nn::Sequential decide{nn::Flatten(), nn::Dropout(0.5), nn::Linear(48 * 4 * 4, 64), nn::ReLU(), nn::Linear(64, 10)};
};

struct Options {
  int replicas = 2;
  std::vector<std::string> devices;
  std::string folder = "demo_files";
};

struct Trained {
  ls::MirroredModule<Net> net;
  ls::train::History history;
};

/// Trains from the beginning, or from the newest checkpoint in `folder`.
Trained train(const Options& options, const std::string& folder) {
  const auto [known, unseen] = split_digits(load_digits());
  torch::manual_seed(1);
  ls::MirroredStrategy strategy({.devices = options.devices, .deterministic = true});
  auto net = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::AdamW>(net, torch::optim::AdamWOptions().weight_decay(0.05));
  ls::train::Model model(net, optimizer,
                         {.loss = ls::train::losses::cross_entropy(), .metrics = {ls::train::metrics::accuracy()}});
  const auto history = model.fit(
      ls::data::from_tensor_slices(known).shuffle(known.count()).batch(kBatch),
      {.epochs = kEpochs,
       .validation = ls::data::from_tensor_slices(unseen).batch(unseen.count()),
       .callbacks = {ls::train::csv_logger({.path = folder + "/training.csv"}),
                     ls::train::tensor_board({.folder = folder + "/logs"}),
                     ls::train::model_checkpoint({.folder = folder + "/checkpoints", .every = {.steps = 10}})},
       .schedule =
           ls::CosineSchedule{.base = 3e-3, .warmup_steps = 20, .total_steps = kEpochs * (known.count() / kBatch + 1)},
       .resume = true});
  return {net, history};
}

std::size_t lines_of(const std::string& path) {
  std::ifstream file(path);
  std::size_t lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

/// Starts this program again to train in `folder`, and kills it some steps into an epoch. False if it ended by itself.
bool train_and_kill(const Options& options, char** argv, const std::string& folder) {
  std::fflush(stdout);
  const std::string replicas = std::to_string(options.replicas),
                    device = options.devices[0].find("gpu") == 0 ? "gpu" : "cpu";
  const std::vector<const char*> arguments = {argv[0],    replicas.c_str(), "--device", device.c_str(),
                                              "--victim", folder.c_str(),   nullptr};
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    execv("/proc/self/exe", const_cast<char**>(arguments.data()));
    _exit(127);
  }
  using namespace std::chrono_literals;
  const auto deadline = std::chrono::steady_clock::now() + 120s;
  const std::string log = folder + "/training.csv";  // a heading, and a line for each epoch
  while (lines_of(log) < 1 + kKillAfterEpoch && std::chrono::steady_clock::now() < deadline &&
         waitpid(child, nullptr, WNOHANG) == 0)
    std::this_thread::sleep_for(2ms);
  std::this_thread::sleep_for(50ms);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

bool have_equal_weights(Net& a, Net& b) {
  const auto first = a.parameters(), second = b.parameters();
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (!torch::equal(first[i], second[i])) return false;
  }
  return first.size() == second.size();
}

bool have_equal_replicas(const ls::MirroredModule<Net>& net) {
  for (std::size_t k = 1; k < net.size(); ++k) {
    if (!have_equal_weights(*net.replica(0), *net.replica(k))) return false;
  }
  return true;
}

/// Draws some of the digits side by side, with the true and the predicted label.
void draw(const Digits& digits, const torch::Tensor& guess, const torch::Tensor& which) {
  constexpr std::int64_t kMost = 4;
  const auto shown = which.slice(0, 0, kMost);
  for (std::int64_t y = 0; y < 8; ++y) {
    std::string line;
    for (std::int64_t i = 0; i < shown.size(0); ++i) {
      line += "    ";
      for (std::int64_t x = 0; x < 8; ++x) {
        const auto ink = digits.images.index({shown[i], 0, y, x}).item<double>();
        line += std::string(2, " .:oO@"[static_cast<int>(5 * ink + 0.5)]);
      }
    }
    std::printf("%s\n", line.c_str());
  }
  for (std::int64_t i = 0; i < shown.size(0); ++i) {
    const auto row = shown[i].item<std::int64_t>();
    const std::string text =
        std::to_string(digits.labels[row].item<int>()) + ", taken for " + std::to_string(guess[row].item<int>());
    std::printf("    %-16s", text.c_str());
  }
  std::printf("\n");
}

void show_mistakes(Net& net) {
  const Digits unseen = split_digits(load_digits()).second;
  const torch::NoGradGuard no_grad;
  net.eval();
  const auto guess = net.forward(unseen.images.to(net.parameters()[0].device())).argmax(1).cpu();
  const auto wrong = (guess != unseen.labels).nonzero().squeeze(1);
  if (wrong.size(0) == 0) return;
  std::printf("\nMistakes it still makes:\n\n");
  draw(unseen, guess, wrong);
}

int run_demo(const Options& options, char** argv) {
  const std::string straight = options.folder + "/straight", killed = options.folder + "/killed";
  for (const std::string& folder : {straight, killed}) {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  std::printf("Handwritten digits, batches of %d, replicas: %d\n\n", kBatch, options.replicas);
  const Trained first = train(options, straight);
  show_mistakes(*first.net);

  std::printf("\nThe same training in a program of its own, which is killed after epoch %d:\n\n", kKillAfterEpoch);
  const bool was_killed = train_and_kill(options, argv, killed);
  std::printf("\n\nKilled. Continued here from its newest checkpoint:\n\n");
  const Trained second = train(options, killed);

  const double accuracy = first.history.last("val_accuracy");
  const bool same_replicas = have_equal_replicas(first.net);
  const bool same_runs =
      was_killed && have_equal_weights(*first.net, *second.net) && first.history.epochs == second.history.epochs;
  auto curves = ls::train::read_curves(straight + "/training.csv", "");
  std::erase_if(curves, [](const ls::train::Curve& curve) { return curve.name == "learning_rate"; });
  std::ofstream(options.folder + "/curves.svg") << ls::train::svg_of(curves, {.title = "Handwritten digits"});
  std::printf("\nRight on digits it has never seen:  %.1f%%\n", 100 * accuracy);
  std::printf("Weights on all replicas:            %s\n", same_replicas ? "equal, bit by bit" : "NOT EQUAL");
  std::printf("Killed and continued:               %s\n",
              same_runs ? "the same weights and history, bit by bit" : "NOT THE SAME");
  const char* const folder = options.folder.c_str();
  std::printf("\nWhat to look at next:\n");
  std::printf("  %s/curves.svg             loss and accuracy; open it in a browser\n", folder);
  std::printf("  %s/straight/training.csv  the values of each epoch\n", folder);
  std::printf("  %s/straight/checkpoints   the whole training, ready to be continued; try `lockstep inspect`\n",
              folder);
  std::printf("  %s/straight/logs          for `tensorboard --logdir`\n", folder);
  return same_replicas && same_runs && accuracy >= 0.97 ? 0 : 1;
}

int main(int argc, char** argv) {
  Options options;
  std::string victim;
  if (argc > 1 && argv[1][0] != '-') options.replicas = std::atoi(argv[1]);
  for (int k = argc - 2; k > 0; --k) {  // the first of a kind counts
    if (argv[k] == std::string("--folder")) options.folder = argv[k + 1];
    if (argv[k] == std::string("--victim")) victim = argv[k + 1];
  }
  if (options.replicas < 1 || options.replicas > kBatch) {
    std::fprintf(stderr, "usage: demo [replicas] [--device gpu] [--folder DIR], replicas from 1 to %d\n", kBatch);
    return 2;
  }
  try {
    options.devices = devices_of(argc, argv, options.replicas);
    if (victim.empty()) return run_demo(options, argv);
    train(options, victim);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
