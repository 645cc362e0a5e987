#include "lockstep/strategy/replica_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/_cudnn_init_dropout_state.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <span>
#include <string>

#include "lockstep/base/fnv.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/kernels/dispatch.h"

namespace lockstep {
namespace {

thread_local ReplicaGenerators* replica_generators = nullptr;

bool is_optional_generator(const c10::Argument& argument) {
  const auto* optional = argument.type()->castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

/// Whether a call works on a GPU: as it says itself, or as its first tensor does.
bool is_on_gpu(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const std::size_t count = schema.arguments().size();
  std::optional<bool> of_tensor;
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& given = torch::jit::peek(stack, i, count);
    if (given.isDevice()) return given.toDevice().is_cuda();
    if (of_tensor) continue;
    if (given.isTensor() && given.toTensor().defined()) of_tensor = given.toTensor().is_cuda();
    if (given.isTensorList() && !given.toTensorList().empty()) of_tensor = given.toTensorList().get(0).is_cuda();
  }
  return of_tensor.value_or(false);
}

void fill_in_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (replica_generators != nullptr) {
    const auto& arguments = op.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (!is_optional_generator(arguments[i])) continue;
      c10::IValue& given = torch::jit::peek(*stack, i, arguments.size());
      if (!given.isNone()) continue;
      const bool on_gpu = replica_generators->gpu.defined() && is_on_gpu(op.schema(), *stack);
      given = on_gpu ? replica_generators->gpu : replica_generators->cpu;
    }
  }
  kernels::pass_on(op, keys, stack);
}

bool draws_on_gpu(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  return replica_generators != nullptr && replica_generators->gpu.defined() && is_on_gpu(op.schema(), stack);
}

void draw_from_replica(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  std::optional<gpu::DefaultGeneratorScope> own_numbers;
  if (draws_on_gpu(op, *stack)) own_numbers.emplace(replica_generators->gpu);
  kernels::pass_on(op, keys, stack);
}

/// For lstm, gru and rnn, which call other operators for all that the replica draws. Whichever thread is the first to call one
/// of them after a seed was set draws the seed of LibTorch's shared state.
void keep_numbers_of_replica(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  std::optional<gpu::DefaultGeneratorScope> other_numbers;
  if (draws_on_gpu(op, *stack) && replica_generators->recurrent->stand_in.defined())
    other_numbers.emplace(replica_generators->recurrent->stand_in);
  kernels::pass_on(op, keys, stack);
}

/// A replica without a state of its own keeps LibTorch's in memory, which recorded steps read, and notices when
/// torch::manual_seed has replaced it.
void hold_shared_state(std::shared_ptr<RecurrentDropout>& recurrent, const at::Tensor& shared) {
  if (recurrent->state.defined() && !recurrent->state.is_same(shared)) {
    recurrent->was_replaced = true;
    recurrent = std::make_shared<RecurrentDropout>();
  }
  recurrent->state = shared;
}

/// For _cudnn_rnn, whose last argument is the state to drop out by: the replica's own, seeded as LibTorch seeds its.
void drop_out_by_replica(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto argument = [&](const char* name) -> c10::IValue& {
    const auto index = static_cast<std::size_t>(op.schema().argumentIndexWithName(name).value());
    return torch::jit::peek(*stack, index, op.schema().arguments().size());
  };
  const double probability = argument("dropout").toDouble();
  c10::IValue& given = argument("dropout_state");
  const bool drops_out =
      probability > 0 && argument("train").toBool() && given.isTensor() && given.toTensor().defined();
  // On another GPU than the replica's, LibTorch's own will do.
  if (drops_out && draws_on_gpu(op, *stack) && given.toTensor().device() == replica_generators->gpu.device()) {
    std::shared_ptr<RecurrentDropout>& recurrent = replica_generators->recurrent;
    ++recurrent->uses;
    if (!recurrent->stand_in.defined()) hold_shared_state(recurrent, given.toTensor());
    at::Tensor& own = recurrent->state;
    if (!own.defined()) {
      const c10::InferenceMode for_training_too(false);
      const at::TensorOptions options = given.toTensor().options();
      const at::Tensor seed = at::empty({}, options.dtype(at::kLong)).random_(replica_generators->gpu);
      own = at::_cudnn_init_dropout_state(probability, /*train=*/true, seed.item<std::int64_t>(), options);
    }
    given = own;
  }
  kernels::pass_on(op, keys, stack);
}

constexpr std::string_view kRecurrent[] = {"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"};

/// Which operators there are is read from the loaded LibTorch, not from a list of ours.
void register_kernels() {
  // Never unregistered: a thread may still be inside an operator when the process ends.
  static auto& all_others =
      *new torch::Library(torch::Library::IMPL, "_", kernels::kReplicaDispatchKey, __FILE__, __LINE__);
  all_others.fallback(torch::CppFunction::makeFallthrough());
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    const std::string overload = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (std::ranges::any_of(op->schema().arguments(), is_optional_generator)) {
      kernels::put_before_libtorch<&fill_in_generator>(overload.c_str());
    } else if (gpu::is_built() && op->hasTag(at::Tag::nondeterministic_seeded)) {
      // These draw on a GPU and cannot be given a generator, such as dropout and attention.
      if (std::ranges::find(kRecurrent, name.name) != std::end(kRecurrent))
        kernels::put_before_libtorch<&keep_numbers_of_replica>(overload.c_str());
      else if (name.name != "aten::_cudnn_rnn")
        kernels::put_before_libtorch<&draw_from_replica>(overload.c_str());
    }
  }
  if (gpu::is_built()) kernels::put_before_libtorch<&drop_out_by_replica>("_cudnn_rnn");
}

// LibTorch hands out a generator's engine only as a copy of 2.5 KB, and every run looks at it twice. An explicit
// instantiation may name private members, so the engine can be looked at where it is.
template <class Member, typename Member::Pointer pointer>
struct Reveal {
  friend typename Member::Pointer reveal(Member) { return pointer; }
};

struct EngineOfGenerator {
  using Pointer = at::mt19937 at::CPUGeneratorImpl::*;
  friend Pointer reveal(EngineOfGenerator);
};
template struct Reveal<EngineOfGenerator, &at::CPUGeneratorImpl::engine_>;

struct StateOfEngine {
  using Pointer = at::mt19937_data_pod at::mt19937::*;
  friend Pointer reveal(StateOfEngine);
};
template struct Reveal<StateOfEngine, &at::mt19937::data_>;

/// Of a CPU generator; its mutex must be held.
at::mt19937_data_pod& state_of(c10::GeneratorImpl& generator) {
  return static_cast<at::CPUGeneratorImpl&>(generator).*reveal(EngineOfGenerator{}).*reveal(StateOfEngine{});
}

/// Whether the shared generator was seeded, and neither was a number drawn since nor this called. A generator without numbers
/// left makes new ones before it draws, wherever it stands among the old ones: a place that seeding does not leave it at
/// marks one that was seen.
bool take_fresh_seed() {
  c10::GeneratorImpl& shared = *at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl();
  const std::lock_guard lock(shared.mutex_);
  at::mt19937_data_pod& state = state_of(shared);
  if (state.left_ != 1 || state.next_ != 0 || gpu::shared_numbers_drawn() > 0) return false;
  state.next_ = at::MERSENNE_STATE_N;
  return true;
}

std::pair<int, std::uint32_t> place_of(const at::Generator& generator) {
  c10::GeneratorImpl& impl = *generator.unsafeGetGeneratorImpl();
  const std::lock_guard lock(impl.mutex_);
  const at::mt19937_data_pod& state = state_of(impl);
  return {state.left_, state.next_};
}

std::uint64_t drawn_on_gpu(const ReplicaGenerators& generators) {
  return gpu::numbers_drawn(generators.gpu) + (generators.recurrent ? generators.recurrent->uses : 0);
}

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

ReplicaGenerators make_generators(const at::Device& device, std::uint64_t seed) {
  ReplicaGenerators made{.cpu = at::detail::createCPUGenerator(seed)};
  if (device.is_cuda()) {
    made.gpu = gpu::make_generator(device, seed);
    made.recurrent = std::make_shared<RecurrentDropout>(RecurrentDropout{gpu::make_generator(device, seed), {}});
  }
  return made;
}

ReplicaGenerators shared_generators(const at::Device& device) {
  ReplicaGenerators shared{.cpu = at::detail::getDefaultCPUGenerator()};
  if (device.is_cuda()) {
    shared.gpu = at::globalContext().defaultGenerator(device);
    shared.recurrent = std::make_shared<RecurrentDropout>();
  }
  return shared;
}

GeneratorScope::GeneratorScope(ReplicaGenerators* generators) : outer_(replica_generators) {
  static const bool registered = (register_kernels(), true);
  (void)registered;
  replica_generators = generators;
  if (generators != nullptr) active_.emplace(kernels::kReplicaDispatchKey);
}

GeneratorScope::~GeneratorScope() { replica_generators = outer_; }

DrawWatch::DrawWatch(const ReplicaGenerators& generators)
    : generators_(generators), place_(place_of(generators.cpu)), drawn_on_gpu_(drawn_on_gpu(generators)) {}

bool DrawWatch::has_drawn() const {
  return place_of(generators_.cpu) != place_ || drawn_on_gpu(generators_) != drawn_on_gpu_;
}

RngSnapshot::RngSnapshot(std::vector<at::Generator> generators) : generators_(std::move(generators)) {
  for (const at::Generator& generator : generators_) {
    const std::lock_guard lock(generator.unsafeGetGeneratorImpl()->mutex_);
    states_.push_back(generator.get_state());
  }
}

void RngSnapshot::restore() const {
  for (std::size_t i = 0; i < generators_.size(); ++i) {
    at::Generator generator = generators_[i];
    const std::lock_guard lock(generator.mutex());
    generator.set_state(states_[i]);
  }
}

std::vector<at::Generator> shared_generators_of(const std::vector<at::Device>& devices) {
  std::vector<at::Generator> all{at::detail::getDefaultCPUGenerator()};
  for (const at::Device& device : devices) {
    if (device.is_cuda()) all.push_back(at::globalContext().defaultGenerator(device));
  }
  return all;
}

SharedGenerator::SharedGenerator() : was_seeded_before_(take_fresh_seed()), seed_(shared_generator_seed()) {}

bool SharedGenerator::was_seeded_since() const { return take_fresh_seed() || shared_generator_seed() != seed_; }

std::uint64_t replica_seed(std::uint64_t job_seed, int replica_id) {
  return mix(job_seed ^ mix(static_cast<std::uint64_t>(replica_id)));
}

std::uint64_t derived_seed(std::uint64_t job_seed, std::string_view purpose, int k) {
  return mix(mix(job_seed ^ fnv1a(std::span<const char>(purpose))) ^ static_cast<std::uint64_t>(k));
}

std::uint64_t shared_generator_seed() { return at::detail::getDefaultCPUGenerator().current_seed(); }

std::uint64_t seed_shared_generators(const std::optional<std::uint64_t>& seed) {
  if (seed) at::manual_seed(*seed);
  return shared_generator_seed();
}

}  // namespace lockstep
