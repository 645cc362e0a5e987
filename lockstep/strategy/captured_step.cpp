#include "lockstep/strategy/captured_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/autocast_state.h"
#include "lockstep/strategy/detail/in_turn.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/step_recorder.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/gpu.h"

namespace lockstep::detail {
namespace {

constexpr int kPlainRuns = 2;     // before a step is recorded: what is made at first use must be there
constexpr int kMostFailures = 2;  // of recording, before it is given up

bool have_same_shape(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.sizes() == b.sizes();
}

/// What of the calling thread's state an operator's work depends on.
void add_modes(std::vector<std::uint64_t>& numbers) {
  numbers.push_back(at::GradMode::is_enabled() ? 1 : 0);
  numbers.push_back(c10::InferenceMode::is_enabled() ? 1 : 0);
  const bool casts = is_autocast_on(at::kCUDA);
  numbers.push_back(casts ? 1 + static_cast<std::uint64_t>(autocast_type(at::kCUDA)) : 0);
}

std::string why_unfit(const std::vector<at::Tensor>& tensors, at::Device device) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) return "an argument is an undefined tensor";
    if (tensor.device() != device)
      return str("an argument is on ", tensor.device().str(), " instead of ", device.str());
    if (tensor.layout() != at::kStrided) return "an argument is sparse";
    if (tensor.requires_grad()) return "an argument requires a gradient";
  }
  return {};
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// What a step throws that has nothing to do with being recorded. LibTorch and Lockstep may refuse only what is recorded: their
/// errors are passed on.
std::exception_ptr what_function_throws(FunctionRef<void()> run) {
  try {
    run();
  } catch (const CannotRecord&) {
    throw;
  } catch (const c10::Error&) {
    throw;
  } catch (const Error&) {
    throw;
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

/// What a step can be recorded for.
struct CaptureKey {
  const std::type_info* types = nullptr;
  std::vector<at::Tensor> like;  ///< tensors of the same shapes, which need hold nothing
  std::vector<std::uint64_t> numbers;

  bool fits(const StepInputs& inputs) const {
    return types == inputs.types && numbers == inputs.numbers &&
           std::equal(like.begin(), like.end(), inputs.tensors.begin(), inputs.tensors.end(), have_same_shape);
  }
};

/// A recorder that the strategy's runs find.
class RecorderScope {
 public:
  RecorderScope(Strategy& strategy, StepRecorder& recorder)
      : runs_(StrategyAccess::runs(strategy)), outer_(std::exchange(runs_.recorder, &recorder)) {}
  ~RecorderScope() { runs_.recorder = outer_; }
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;

 private:
  Runs& runs_;
  StepRecorder* outer_;
};

struct StepCapture::State {
  Strategy* strategy = nullptr;
  std::weak_ptr<Strategy*> alive;
  at::Device device = at::kCPU;
  bool has_gpus = false;
  std::string obstacle;  ///< why none of its runs can be recorded

  // The last plain runs.
  CaptureKey last;
  int runs = 0;  ///< of the same key, in a row
  std::shared_ptr<StepRecorder> warm;

  // What is recorded.
  std::shared_ptr<gpu::Graph> graph;
  CaptureKey key;  ///< `like` is what the graph reads
  std::shared_ptr<StepRecorder> recorded;

  std::int64_t replays = 0;
  int failures = 0;
  std::string reason;
  std::vector<std::string> logged;

  void say(std::string why) {
    reason = std::move(why);
    if (!has_gpus || std::find(logged.begin(), logged.end(), reason) != logged.end()) return;
    logged.push_back(reason);
    say_warning(str("a captured step runs without a CUDA graph: ", reason));
  }

  void forget() {
    graph.reset();
    recorded.reset();
    key = {};
    runs = 0;
    replays = 0;
  }

  Way run_plainly(const StepInputs& inputs) {
    if (!last.fits(inputs)) {
      last = {inputs.types, {}, inputs.numbers};
      for (const at::Tensor& tensor : inputs.tensors) last.like.push_back(tensor.detach());
      runs = 0;
    }
    ++runs;
    return Way::Run;
  }
};

StepCapture::StepCapture(Strategy& strategy) : state_(std::make_unique<State>()) {
  state_->strategy = &strategy;
  state_->alive = StrategyAccess::alive(strategy);
  state_->device = strategy.replica_context(0).device();
  state_->has_gpus = StrategyAccess::device_kinds(strategy) != DeviceKinds::Cpus;
  for (int k = 1; k < strategy.num_local_replicas(); ++k) {
    if (strategy.replica_context(k).device() != state_->device) state_->obstacle = "its replicas are on several GPUs";
  }
  if (!state_->has_gpus) state_->obstacle = "its replicas are on CPUs";
  if (StrategyAccess::device_kinds(strategy) == DeviceKinds::Mixed)
    state_->obstacle = "its replicas are on CPUs and GPUs";
  state_->reason = "it has not been called yet";
}

StepCapture::~StepCapture() = default;
StepCapture::StepCapture(StepCapture&&) noexcept = default;
StepCapture& StepCapture::operator=(StepCapture&&) noexcept = default;

Strategy& StepCapture::strategy() const {
  if (!state_->alive.expired()) return *state_->strategy;
  throw FailedPrecondition(errors::kMixedStrategies, {.what = "the strategy of this captured step is gone",
                                                      .help = "keep the strategy for as long as its steps are called"});
}

bool StepCapture::was_replayed() const { return state_->reason.empty(); }
const std::string& StepCapture::reason() const { return state_->reason; }
void StepCapture::refuse(std::string reason) { state_->say(std::move(reason)); }
const std::vector<at::Tensor>& StepCapture::inputs() const { return state_->key.like; }

StepCapture::Way StepCapture::plan(const StepInputs& given) {
  State& state = *state_;
  require_cross_replica(*state.strategy, "run");
  if (!state.obstacle.empty()) {
    state.say(state.obstacle);
    return Way::Run;
  }
  if (std::string unfit = why_unfit(given.tensors, state.device); !unfit.empty()) {
    state.say(std::move(unfit));
    return Way::Run;
  }
  if (state.failures >= kMostFailures) return Way::Run;  // the reason stays
  StepInputs inputs = given;
  add_modes(inputs.numbers);
  const bool fits = state.graph && state.key.fits(inputs);
  if (fits) {
    std::string reason = state.graph->draws_for_replicas() ? state.recorded->prepare() : "it has a new seed";
    if (reason.empty()) return Way::Replay;
    // A step that changes such things itself would be recorded again and again.
    if (state.replays <= 1) ++state.failures;
    state.forget();
    state.say(std::move(reason));
    return state.run_plainly(inputs);
  }
  if (state.runs < kPlainRuns || !state.last.fits(inputs)) {
    if (state.graph)
      state.say("its arguments have other shapes or numbers than those it was recorded with");
    else
      state.reason = "it is recorded after a few plain runs";
    return state.run_plainly(inputs);
  }
  if (std::string reason = state.warm ? state.warm->prepare() : ""; !reason.empty()) {
    state.forget();
    state.reason = std::move(reason);
    return state.run_plainly(inputs);
  }
  state.forget();
  state.key = {inputs.types, {}, inputs.numbers};
  const c10::InferenceMode counted(false);  // whose tensors do not count what is written to them
  for (const at::Tensor& tensor : inputs.tensors) state.key.like.push_back(at::empty_like(tensor));
  return Way::Record;
}

class StepCapture::PlainRun {
 public:
  PlainRun(Strategy& strategy, StepRecorder& recorder) : scope_(strategy, recorder) {}

 private:
  RecorderScope scope_;
};

std::shared_ptr<StepCapture::PlainRun> StepCapture::plain_run() {
  State& state = *state_;
  if (!state.has_gpus) return nullptr;
  state.warm = std::make_shared<StepRecorder>(state.strategy->num_local_replicas(), /*is_recording=*/false);
  return std::make_shared<PlainRun>(*state.strategy, *state.warm);
}

bool StepCapture::record(const StepInputs& inputs, FunctionRef<void()> run) {
  State& state = *state_;
  const auto last_failure = state.strategy->last_failure();
  state.recorded = std::make_shared<StepRecorder>(state.strategy->num_local_replicas(), /*is_recording=*/true);
  const auto give_up = [&](std::string why) {
    ++state.failures;
    state.forget();
    state.say(std::move(why));
    StrategyAccess::runs(*state.strategy).last_failure = last_failure;  // the run that follows is what counts
    return false;
  };
  std::vector<std::int64_t> before;  // how often the arguments' copies were written to
  for (const at::Tensor& copy : state.key.like) before.push_back(copy._version());
  forget_casts();  // of weights, by an autocast around the step: memory that is not the graph's
  std::exception_ptr thrown;
  try {
    auto graph = StrategyAccess::make_graph(*state.strategy);
    if (!graph) return give_up("this strategy cannot record");
    const RecorderScope scope(*state.strategy, *state.recorded);
    graph->record([&] {
      // One after the other, so that the order of what is recorded does not depend on timing.
      const InTurn in_turn(true);
      thrown = what_function_throws(run);
    });
    state.graph = std::move(graph);
  } catch (const CannotRecord& e) {
    return give_up(e.what());
  } catch (const c10::Error& e) {
    return give_up(first_line(e.what_without_backtrace()));
  } catch (const std::exception& e) {
    return give_up(first_line(e.what()));
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (state.key.like[i]._version() != before[i])
      return give_up(
          "it writes into an argument, and the graph works on a copy of that: capture the tensor by reference");
  }
  if (!thrown) return true;
  // As after a plain run, what the function has started before it threw is done.
  replay(inputs);
  state.forget();
  state.reason = "it has thrown while it was recorded";
  std::rethrow_exception(thrown);
}

void StepCapture::replay(const StepInputs& inputs) {
  State& state = *state_;
  gpu::copy_all(inputs.tensors, state.key.like);
  state.graph->replay();
  ++state.replays;
  state.reason.clear();
  state.strategy->run([&] { state.recorded->finish(std::max(0, current_component())); });
}

void require_on_gpu(const at::Tensor& result) {
  if (result.defined() && !result.is_cuda()) throw CannotRecord("it returns a tensor that is not on the GPU");
}

at::Tensor copy_of_result(const at::Tensor& result) { return result.defined() ? result.detach().clone() : result; }

}  // namespace lockstep::detail
