#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/worker_group.h"
#include "lockstep/lockstep.h"
#include "tests/support/replicas.h"

// The workers of a job as they see each other. Every worker runs these tests, in the same order: `lockstep run -n 2
// multi_worker_together_test`. Each test makes its own strategy.
namespace together {

namespace ls = lockstep;

/// The other workers, and the names of the program's collectives that this one has begun with them.
class Noted final : public ls::WorkerGroup {
 public:
  explicit Noted(std::shared_ptr<ls::WorkerGroup> group)
      : WorkerGroup({group->rank(), group->workers(), group->replicas()}), group_(std::move(group)) {}

  Ticket submit(Channel channel, const ls::Collective& collective, ls::Deadline limit) override {
    if (channel == kProgram) {
      const std::lock_guard lock(mutex);
      names.emplace_back(collective.name);
      if (collective.implementation == ls::Implementation::Ring) names.back() += ", by a ring";
    }
    return group_->submit(channel, collective, limit);
  }
  void wait(Ticket ticket) override { group_->wait(ticket); }
  void set_place(std::string_view place) override { group_->set_place(place); }
  void report(const ls::Error& error) override { group_->report(error); }
  void report(const std::string& what) override { group_->report(what); }

  /// How many names contain this.
  static int count(const std::string& part) {
    const std::lock_guard lock(mutex);
    return static_cast<int>(std::count_if(names.begin(), names.end(),
                                          [&](const std::string& name) { return name.find(part) != name.npos; }));
  }

 private:
  static inline std::mutex mutex;
  static inline std::vector<std::string> names;
  std::shared_ptr<ls::WorkerGroup> group_;
};

inline ls::WorkerGroupMaker real_maker = nullptr;
struct NoteAll : testing::Environment {
  void SetUp() override {  // the component has registered its own by then
    real_maker =
        ls::set_worker_group_maker([](const ls::WorkerGroupOptions& options) -> std::shared_ptr<ls::WorkerGroup> {
          return std::make_shared<Noted>(real_maker(options));
        });
  }
};
inline const auto* const note_all = testing::AddGlobalTestEnvironment(new NoteAll);

/// Some compilers have no shared one, so it is linked into this program.
inline bool has_own_cpp_runtime() {
  Dl_info runtime{}, program{};
  ::dladdr(reinterpret_cast<void*>(&std::terminate), &runtime);
  ::dladdr(reinterpret_cast<void*>(&has_own_cpp_runtime), &program);
  return runtime.dli_fbase == program.dli_fbase;
}

/// Two replicas on each worker.
struct Together : testing::Test {
  ls::MultiWorkerMirroredStrategy strategy{{.devices = ls::test_devices(2), .intra_op_threads = 1, .seed = 3}};
  const int workers = strategy.num_workers();
  const int rank = strategy.worker_id();
  /// A file visible to all workers, but not to other jobs that run these tests at the same time.
  std::string file = std::string(std::getenv("LOCKSTEP_TEST_FOLDER") ? std::getenv("LOCKSTEP_TEST_FOLDER") : "/tmp") +
                     "/" + testing::UnitTest::GetInstance()->current_test_info()->name() +
                     std::to_string(strategy.broadcast(static_cast<int>(::getpid()))) + ".safetensors";
  ~Together() override { std::filesystem::remove(file); }

  template <class Model, class Optimizer>
  void train(Model& model, Optimizer& optimizer, int steps) {
    for (int s = 0; s < steps; ++s) {
      strategy.run([&] {
        auto x = torch::rand({3, 4});
        optimizer.minimize(ls::average_loss(model->forward(x).square().sum(1)));
      });
    }
  }
};

}  // namespace together
