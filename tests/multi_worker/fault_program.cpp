// A worker that trains until something goes wrong: `fault_program SCENARIO [name=value...]`.
//
//   faulty=1     the worker that executes the scenario, at step 4
//   replicas=2   replicas per worker
//   steps=12     how many to make
//   timeout=60   limit of collectives, in seconds
//   join=60      how long to wait for other workers, in seconds
//   outlive=1    the optimizer outlives the strategy
//   save=FILE    where to save the state after a failure; the program then ends as if nothing had happened
//   each=FILE    where to save after every step
//   data_port=0  port of the faulty worker
//   tls=A,C,K    the files of authority, certificate and key
//
// After each step it prints a digest of the weights. On failure it prints the time, the error, and its weights.

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/lockstep.h"
#include "tests/support/replicas.h"

namespace ls = lockstep;
namespace nn = torch::nn;

namespace {

constexpr int kFaultyStep = 4;
constexpr int kExitPeerLost = 3;

struct Settings {
  std::string scenario;
  int faulty = 1, replicas = 2, steps = 12, data_port = 0;
  double timeout = 60, join = 60;
  bool outlive = false;
  std::string save = {}, each = {};
  ls::TlsFiles tls = {};
};

Settings settings_of(int argc, char** argv) {
  Settings settings{.scenario = argc > 1 ? argv[1] : "train"};
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const auto equals = word.find('=');
    const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
    if (name == "faulty") settings.faulty = std::stoi(value);
    if (name == "replicas") settings.replicas = std::stoi(value);
    if (name == "steps") settings.steps = std::stoi(value);
    if (name == "timeout") settings.timeout = std::stod(value);
    if (name == "join") settings.join = std::stod(value);
    if (name == "data_port") settings.data_port = std::stoi(value);
    if (name == "outlive") settings.outlive = value == "1";
    if (name == "save") settings.save = value;
    if (name == "each") settings.each = value;
    if (name == "tls") {
      const auto first = value.find(','), last = value.rfind(',');
      settings.tls = {value.substr(0, first), value.substr(first + 1, last - first - 1), value.substr(last + 1)};
    }
  }
  return settings;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

[[gnu::format(printf, 1, 2)]] void say(const char* format, ...) {
  std::va_list args;
  va_start(args, format);
  std::vprintf(format, args);
  va_end(args);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

[[noreturn]] void sleep_for_ever() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

std::optional<ls::MirroredOptimizer<torch::optim::SGD>> outlives;

class Worker {
 public:
  explicit Worker(const Settings& settings)
      : settings_(settings),
        strategy_({.devices = ls::test_devices(settings.replicas),
                   .communication = {.timeout_seconds = settings.timeout,
                                     .implementation = is("other_way") && task() == settings.faulty
                                                           ? ls::Implementation::Ring
                                                           : ls::Implementation::Auto},
                   .intra_op_threads = 1,
                   .seed = is("other_seed") && task() == settings.faulty ? 8 : 7,
                   .deterministic = true,
                   .join_seconds = settings.join,
                   .data_port = task() == settings.faulty ? settings.data_port : 0,
                   .tls = settings.tls}),
        model_(strategy_.make([&] {
          nn::Sequential net(nn::Linear(8, misbehaves("other_model") ? 17 : 16), nn::ReLU(),
                             nn::Linear(misbehaves("other_model") ? 17 : 16, 1));
          if (is("other_buffers")) net->push_back(nn::BatchNorm1d(nn::BatchNorm1dOptions(1).momentum(0.0)));
          return net;
        })),
        optimizer_(strategy_.make_optimizer<torch::optim::SGD>(
            model_, torch::optim::SGDOptions(misbehaves("other_optimizer") ? 0.02 : 0.01)
                        .momentum(misbehaves("other_momentum") ? 0.5 : 0.9))) {
    if (settings.outlive) outlives = optimizer_;
    if (is("drops_window")) optimizer_.set_accumulate(2);
    if (is("other_buffers")) optimizer_.set_digest({.every = 1, .buffers = true});
    if (is("other_groups")) {
      const char* const first = misbehaves("other_groups") ? "0." : "2.";
      const auto slow = torch::optim::SGDOptions(0.01);
      strategy_.make_optimizer<torch::optim::SGD>(model_, {{{first}, torch::optim::SGDOptions(0.1)}, {{""}, slow}});
    }
    if (misbehaves("other_init")) change_weights();
    say("started %d as worker %d", ::getpid(), strategy_.worker_id());
  }

  void train() {
    if (is("uneven_data")) return train_on_uneven_data();
    const auto rows = torch::linspace(-1, 1, 120 * 8).view({120, 8});
    const auto batches =
        strategy_.distribute(ls::data::from_tensor_slices(rows).repeat().batch(misbehaves("other_batches") ? 6 : 12));
    std::optional<ls::PerReplica<torch::Tensor>> last;
    try {
      for (const auto& batch : batches) {
        if (step_ == settings_.steps) break;
        ++step_;
        before_step();
        strategy_.run([&](const torch::Tensor& mine) { step(mine); }, misbehaves("other_batch") ? *last : batch);
        last = batch;
        weights("step");
        if (!settings_.each.empty()) ls::save(settings_.each, model_, optimizer_);
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      say("leaves at %.6f", now());
    } catch (const ls::Error& error) {
      // The failed step left nothing behind.
      say("failed at %.6f with L%d\n%s", now(), error.number(), error.what());
      weights("kept");
      if (settings_.save.empty()) throw;
      ls::save(settings_.save + std::to_string(strategy_.worker_id()), model_, optimizer_, {.this_worker_only = true});
      say("saved");
    }
  }

 private:
  /// Before there is a strategy.
  static int task() {
    const char* const config = std::getenv("TF_CONFIG");
    const std::string text = config ? config : "\"index\": 0";
    return std::atoi(text.c_str() + text.rfind("index") + 7);
  }
  bool is(const char* scenario) const { return settings_.scenario == scenario; }
  bool misbehaves(const char* scenario) const {
    return is(scenario) && strategy_.worker_id() == settings_.faulty && (step_ == 0 || step_ == kFaultyStep);
  }

  void change_weights() {
    model_.update([](nn::SequentialImpl& net) { net.parameters()[0].mul_(0.5); });
  }

  void weights(const char* what) const {
    if (is("drops_window")) return;  // there are no digests inside a window
    say("%s %lld weights %016llx", what, static_cast<long long>(optimizer_.steps()),
        static_cast<unsigned long long>(ls::combine(optimizer_.digests())));
  }

  void before_step() {
    if (step_ != kFaultyStep) return;
    const bool mine = strategy_.worker_id() == settings_.faulty;
    if (mine) say("fault at %.6f", now());
    if (misbehaves("throw_outside") || misbehaves("uncaught")) throw std::runtime_error("the disk is full");
    if (misbehaves("exit")) std::exit(7);
    if (misbehaves("stuck")) sleep_for_ever();
    if (misbehaves("other_rate")) optimizer_.set_learning_rate(0.5);
    if (misbehaves("other_options")) optimizer_.options().weight_decay(0.1);
    if (misbehaves("other_clip")) optimizer_.set_clip_global_norm(0.001);
    if (misbehaves("other_weights")) change_weights();
    if (misbehaves("frozen")) model_.named_parameters()["0.weight"].requires_grad_(false);
    collectives(mine);
  }

  /// Workers that call different collectives.
  void collectives(bool mine) {
    const auto sum = [&](const torch::Tensor& value) {
      strategy_.reduce(ls::ReduceOp::Sum,
                       ls::PerReplica<torch::Tensor>::generate(static_cast<std::size_t>(settings_.replicas),
                                                               [&](std::size_t) { return value; }));
    };
    const torch::Tensor four = torch::ones({4});
    if (is("sizes")) sum(mine ? torch::ones({5}) : four);
    if (is("dtypes")) sum(mine ? torch::ones({4}, torch::kInt) : four);
    if (is("operations")) {
      strategy_.run([&] {
        ls::get_replica_context().all_reduce(mine ? ls::ReduceOp::Mean : ls::ReduceOp::Sum, torch::ones({4}));
      });
    }
    if (is("order")) {
      const auto first = [&] { strategy_.broadcast(torch::zeros({4})); };
      const auto second = [&] { strategy_.broadcast(torch::ones({4})); };
      mine ? second() : first();
      mine ? first() : second();
    }
    if (is("same_line")) {
      const torch::Tensor value = torch::zeros({4});
      // clang-format off
      const auto first = [&] { strategy_.broadcast(value); }; const auto second = [&] { strategy_.broadcast(value); };
      // clang-format on
      mine ? second() : first();
    }
    const ls::PerReplica<torch::Tensor> square(
        std::vector<torch::Tensor>(static_cast<std::size_t>(settings_.replicas), torch::ones({2, 2})));
    if (is("gather_axis")) strategy_.gather(square, mine ? 1 : 0);
    if (is("reduce_axis")) strategy_.reduce(ls::ReduceOp::Sum, square, mine ? 1 : 0);
    if (is("kinds")) mine ? void(strategy_.broadcast(four)) : sum(four);
    if (is("barrier")) mine ? strategy_.barrier() : sum(four);
    if (is("save")) mine ? ls::save("/nowhere/file", model_, optimizer_) : sum(four);
    if (is("load")) mine ? ls::load("/nowhere/file", model_, optimizer_) : sum(four);
    if (is("saves_more")) {
      if (mine) ls::save("/nowhere/file", model_);
      ls::save("/nowhere/file", model_);
    }
    if (is("make")) mine ? void(strategy_.make([] { return nn::Linear(1, 1); })) : sum(four);
    if (is("make_optimizer"))
      mine ? void(strategy_.make_optimizer<torch::optim::SGD>(model_, torch::optim::SGDOptions(0.1))) : sum(four);
    if (is("constructor")) mine ? void(ls::MultiWorkerMirroredStrategy{{.devices = ls::cpus(1)}}) : sum(four);
    if (is("late_save")) {
      if (mine) std::this_thread::sleep_for(std::chrono::duration<double>(settings_.join + 1));
      ls::save(settings_.each + ".late", model_);
    }
    if (is("fewer_steps") && mine) ++step_;
  }

  void step(const torch::Tensor& mine) {
    const int replica =
        ls::get_replica_context().replica_id_in_sync_group() - strategy_.worker_id() * settings_.replicas;
    if (replica == 0 && misbehaves("throw_first")) throw std::runtime_error("a bad picture");
    if (replica == settings_.replicas - 1 && misbehaves("throw_last")) throw std::runtime_error("a bad picture");
    if (misbehaves("exit_in_run")) {
      if (replica == 0) std::exit(7);
      sleep_for_ever();  // LibTorch does not survive the end of its static objects in another thread
    }
    if (replica == 0 && misbehaves("abort_in_run")) std::abort();
    if (replica == 0 && misbehaves("stuck_in_run")) sleep_for_ever();
    if (misbehaves("other_buffers")) model_->named_buffers()["3.running_mean"].fill_(1);  // on all its replicas
    torch::Tensor guess = model_->forward(mine);
    if (replica == settings_.replicas - 1 && misbehaves("throw_in_backward"))
      guess.register_hook([](const torch::Tensor&) { throw std::runtime_error("a bad gradient"); });
    if (misbehaves("drops_window")) optimizer_.zero_grad();
    const auto size = is("drops_window") ? std::optional<std::int64_t>(24) : std::nullopt;
    const auto loss = ls::average_loss((guess - mine.sum(1, true)).square().squeeze(1), size);
    if (is("other_limit") || is("skipped_step")) {
      optimizer_.backward(loss);
      optimizer_.reduce_gradients();
      if (is("other_limit")) optimizer_.clip_global_norm(misbehaves("other_limit") ? 0.25 : 0.5);
      misbehaves("skipped_step") ? optimizer_.zero_grad() : optimizer_.step();
    } else {
      optimizer_.minimize(loss);
    }
    if (replica == 0 && misbehaves("throw_after_step")) throw std::runtime_error("a bad metric");
  }

  /// Each worker has other rows, and a different number of batches.
  void train_on_uneven_data() {
    const auto batches = strategy_.distribute_from_function([&](const ls::InputContext& input) {
      const int id = input.input_pipeline_id;
      return ls::data::from_tensor_slices(torch::full({3 + 4 * id, 8}, 1.0 + id)).batch(2);
    });
    double rows = 0, total = 0;
    for (const auto& batch : batches) {
      const auto counted = strategy_.run(
          [&](const torch::Tensor& mine) {
            step(mine);
            return std::pair{torch::tensor(static_cast<double>(mine.size(0))), mine.sum().to(torch::kDouble)};
          },
          batch);
      const auto sums = strategy_.reduce(ls::ReduceOp::Sum, counted);
      rows += sums.first.item<double>();
      total += sums.second.item<double>();
    }
    say("rows %.0f total %.0f", rows, total);
    weights("step");
  }

  const Settings settings_;
  ls::MultiWorkerMirroredStrategy strategy_;
  int step_ = 0;
  ls::MirroredModule<nn::SequentialImpl> model_;
  ls::MirroredOptimizer<torch::optim::SGD> optimizer_;
};

int train(const Settings& settings) {
  try {
    Worker(settings).train();
    say("ended at %.6f", now());
    return 0;
  } catch (const ls::Error& error) {
    say("error at %.6f", now());
    std::fprintf(stderr, "%s\n", error.what());
    const bool about_another = error.code() == ls::Code::Unavailable;
    return about_another ? kExitPeerLost : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  ls::use_nccl_on_one_gpu();
  const Settings settings = settings_of(argc, argv);
  say("pid %d begins at %.6f", ::getpid(), now());
  if (settings.scenario == "uncaught") return Worker(settings).train(), 0;
  const int code = train(settings);
  if (outlives) {
    outlives.reset();
    say("the optimizer has outlived its strategy");
  }
  return code;
}
