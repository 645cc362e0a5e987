#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

/// The random state of cuDNN's dropout between the layers of an LSTM or GRU. LibTorch has one per GPU, for all threads.
struct RecurrentDropout {
  at::Generator stand_in;     ///< LibTorch seeds its shared state from it, so the replica's numbers stay as they are.
                              ///< Undefined: the replica uses the shared state
  at::Tensor state;           ///< undefined until the replica needs it
  std::uint64_t uses = 0;     ///< calls that dropped out by it
  bool was_replaced = false;  ///< the replica was given another seed
};

/// A replica's sources of random numbers.
struct ReplicaGenerators {
  at::Generator cpu;
  at::Generator gpu = {};  ///< undefined where the replica is on no GPU, as is the next
  std::shared_ptr<RecurrentDropout> recurrent = {};
};

/// Generators of `device`'s kind, all seeded with `seed`.
ReplicaGenerators make_generators(const at::Device& device, std::uint64_t seed);

/// LibTorch's own generators, for the replica of a strategy that has only one: it draws what a plain program draws.
ReplicaGenerators shared_generators(const at::Device& device);

/// Random numbers that belong to a replica. LibTorch's CPU threads share one generator, and operations such as dropout
/// take none, so with replicas on threads the numbers would depend on timing. While a scope lives, every random
/// operation of this thread that was given no generator uses `generators` instead of the shared one: that of the device
/// that the operation works on.
///
/// How: for each operator with an optional generator a kernel is registered under a spare dispatch key that is active
/// only inside such a scope; it fills the generator in and passes the call on. Some operators draw on GPUs and take no
/// generator: for these the replica's numbers take the place of LibTorch's own while the operator is called.
class GeneratorScope {
 public:
  /// null: back to LibTorch's own generators.
  explicit GeneratorScope(ReplicaGenerators* generators);
  ~GeneratorScope();
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  ReplicaGenerators* outer_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> active_;
};

/// The seed of the stream of replica `replica_id`, counted over all workers, if there are several. It is never the seed of the
/// job, from which initial weights are drawn: dropout must not repeat their numbers.
std::uint64_t replica_seed(std::uint64_t job_seed, int replica_id);

/// The seed of the k-th stream for some purpose ("place"), unrelated to any replica's.
std::uint64_t derived_seed(std::uint64_t job_seed, std::string_view purpose, int k);

/// The seed that LibTorch's shared CPU generator was last given.
std::uint64_t shared_generator_seed();
/// Seeds LibTorch's generators as torch::manual_seed does, if `seed` is set. Returns the seed that they have.
std::uint64_t seed_shared_generators(const std::optional<std::uint64_t>& seed);

/// Notices whether a replica draws numbers after this object was made.
class DrawWatch {
 public:
  explicit DrawWatch(const ReplicaGenerators& generators);
  bool has_drawn() const;

 private:
  const ReplicaGenerators& generators_;
  std::pair<int, std::uint32_t> place_;
  std::uint64_t drawn_on_gpu_;
};

/// The states of generators, for work that is done again from its beginning.
class RngSnapshot {
 public:
  explicit RngSnapshot(std::vector<at::Generator> generators);
  void restore() const;

  /// One tensor of bytes for each generator. Whoever replaces them chooses what `restore` restores.
  std::vector<at::Tensor>& states() { return states_; }

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

/// LibTorch's own generators that a program on these devices draws from: the CPU's, and those of the GPUs among them.
std::vector<at::Generator> shared_generators_of(const std::vector<at::Device>& devices);

/// Remembers LibTorch's shared CPU generator, to notice when it is seeded, also with the number that it had before.
class SharedGenerator {
 public:
  SharedGenerator();
  /// Since the last such object was made, and no number was drawn after it.
  bool was_seeded_before() const { return was_seeded_before_; }
  /// Unless numbers were drawn from it after that.
  bool was_seeded_since() const;

 private:
  bool was_seeded_before_;
  std::uint64_t seed_;
};

}  // namespace lockstep
