#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <optional>
#include <random>
#include <system_error>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/nn/save/save.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/named_tensors.h"
#include "tests/support/plain_loop.h"
#include "tests/support/replicas.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

// Saved files and other processes: killed ones, concurrent saves to the same path, and Python.
namespace lockstep {
namespace {

/// How much of a new file a process has written next to the existing ones; nothing if it is not writing any.
std::optional<std::uintmax_t> bytes_on_the_way(const std::string& folder, pid_t process) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().find(str('.', process, '-')) == std::string::npos) continue;
    std::error_code gone;
    const std::uintmax_t bytes = entry.file_size(gone);
    if (!gone) return bytes;
  }
  return std::nullopt;
}

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
  save(path, even);
  const std::uintmax_t size = std::filesystem::file_size(path);
  // Shared with the children: the number of completed saves.
  void* shared = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& ended = *new (shared) std::atomic<int>(0);
  std::minstd_rand random(1);  // NOLINT: the same moments every time
  int in_the_middle = 0;
  bool was_odd = false;
  for (int kill = 0; kill < 50; ++kill) {
    ended = 0;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        for (;;) {
          save(path, odd);
          ++ended;
          save(path, even);
          ++ended;
        }
      } catch (...) {
        std::_Exit(1);
      }
    }
    int status = 0;
    const auto await = [&](auto&& condition) {
      while (!condition()) {
        ASSERT_EQ(::waitpid(child, &status, WNOHANG), 0) << "saving failed before it was killed";
        std::this_thread::yield();
      }
    };
    ASSERT_NO_FATAL_FAILURE(await([&] { return ended >= kill % 3; }));
    // Every other child is killed at a random moment. The rest are killed when this much of a new file is written; they
    // are stopped first, because they may have finished the file by the time its size is seen.
    const bool wants_middle = kill % 2 == 0;
    const auto bytes = std::uniform_int_distribution<std::uintmax_t>(0, size)(random);
    const auto is_writing = [&] { return bytes_on_the_way(folder.path(), child) >= bytes; };
    for (bool stopped = !wants_middle; !stopped;) {
      ASSERT_NO_FATAL_FAILURE(await(is_writing));
      ASSERT_EQ(::kill(child, SIGSTOP), 0);
      ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
      ASSERT_TRUE(WIFSTOPPED(status)) << "saving failed before it was stopped";
      stopped = is_writing();
      if (!stopped) {
        ASSERT_EQ(::kill(child, SIGCONT), 0);
      }
    }
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "saving failed before it was killed";
    const Tensors found = load_tensors(path);
    const bool is_odd = found.at("tensor 0")[0].item<int>() == 1;
    expect_same(found, is_odd ? odd : even);
    if (wants_middle) {
      ++in_the_middle;
      EXPECT_EQ(is_odd, ended > 0 ? ended % 2 == 1 : was_odd) << "the last save that ended";
    }
    was_odd = is_odd;
  }
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_GE(std::distance(files, {}), 1 + in_the_middle) << "what they had begun to write";
  ::munmap(shared, sizeof ended);
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
  MirroredStrategy strategy(on_devices(2));
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
