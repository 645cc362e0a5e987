#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/nn/save/save.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/named_tensors.h"
#include "tests/support/plain_loop.h"
#include "tests/support/replicas.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

// Saved files and other processes: those that are killed, those that save to the same path, and Python.
namespace lockstep {
namespace {

TEST(Save, AKillAtAnyMomentLeavesTheOldFileOrTheNewOne) {
  const Watchdog watchdog(std::chrono::seconds(120), "a loop of kills");
  const TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  const auto tensors_of = [](int value) {
    Tensors tensors;
    for (int i = 0; i < 8; ++i) tensors[str("tensor ", i)] = torch::full({20'000}, value, at::kInt);
    return tensors;
  };
  const Tensors even = tensors_of(0), odd = tensors_of(1);
  const auto start = std::chrono::steady_clock::now();
  save(path, odd);
  save(path, even);
  const auto both = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  const auto longest = std::clamp<std::int64_t>(3 * both.count(), 10'000, 200'000);  // a slow disk gets more time
  std::minstd_rand random(1);  // NOLINT: the same moments every time, as far as a clock can
  int seen_odd = 0;
  for (int kill = 0; kill < 50; ++kill) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        for (;;) {
          save(path, odd);
          save(path, even);
        }
      } catch (...) {
        std::_Exit(1);
      }
    }
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution<std::int64_t>(0, longest)(random)));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "saving failed before it was killed";
    const Tensors found = load_tensors(path);
    const bool is_odd = found.at("tensor 0")[0].item<int>() == 1;
    expect_same(found, is_odd ? odd : even);
    seen_odd += is_odd ? 1 : 0;
  }
  EXPECT_GT(seen_odd, 0) << "some kills came after a save";
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_GT(std::distance(files, {}), 1) << "some kills came in the middle of one";
}

TEST(Save, ProcessesThatSaveToOnePathDoNotMix) {
  const Watchdog watchdog(std::chrono::seconds(120), "processes that save");
  const TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  std::vector<pid_t> children;
  for (int value = 0; value < 3; ++value) {
    const Tensors tensors{{"a", torch::full({5000}, value, at::kInt)}, {"b", torch::full({5000}, value, at::kInt)}};
    children.push_back(::fork());
    ASSERT_GE(children.back(), 0);
    if (children.back() == 0) {
      try {
        for (int i = 0; i < 10; ++i) save(path, tensors);
      } catch (...) {
        std::_Exit(1);
      }
      std::_Exit(0);
    }
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const Tensors found = load_tensors(path);
  EXPECT_TRUE(same_bits(found.at("a"), found.at("b")));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Python, ReadsWhatWasSavedAndWritesWhatIsLoaded) {
  const TemporaryFolder folder;
  const std::string python = LOCKSTEP_INTEROP_PYTHON;
  const auto run = [&](const std::string& code) {
    const std::string script = folder.file("script.py", code);
    return std::system(str("'", python, "' '", script, "' >'", folder / "log", "' 2>&1").c_str());
  };
  MirroredStrategy strategy(on_cpus(2));
  auto model = strategy.make<SmallNet>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
  mirrored_step(strategy, model, optimizer, random_batch(8));
  save(folder / "ours", model, optimizer);
  const int status = run(str("folder = '", folder.path().string(), "'\n", R"(
try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError:
    raise SystemExit(77)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(9, 24)
        self.norm = torch.nn.BatchNorm1d(24)
        self.second = torch.nn.Linear(24, 4)
        self.unused = torch.nn.Parameter(torch.ones(5))

tensors = load_file(folder + "/ours")
weights = {name: t for name, t in tensors.items() if not name.startswith("optimizer/")}
net = Net()
net.load_state_dict(weights)
assert tensors["optimizer/first.weight/step"] == 1
assert tensors["optimizer/first.weight/exp_avg"].shape == (24, 9)
with torch.no_grad():
    for p in net.parameters():
        p.mul_(2)
save_file(net.state_dict(), folder + "/theirs")
)"));
  const bool is_missing = WIFEXITED(status) && (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127);
  if (is_missing) GTEST_SKIP() << "no Python with torch and safetensors";
  ASSERT_EQ(status, 0) << file_content(folder / "log");
  const Tensors before = copies_of_all(model.named_parameters());
  load(folder / "theirs", model);
  for (const auto& [name, value] : before) EXPECT_TRUE(same_bits(model.named_parameters()[name], value * 2)) << name;
}

}  // namespace
}  // namespace lockstep
