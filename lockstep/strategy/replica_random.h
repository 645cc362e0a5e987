#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep {

/// Random numbers that belong to a replica. LibTorch's CPU threads share one generator, and operations such as dropout
/// take none, so with replicas on threads the numbers would depend on timing. While a scope lives, every random
/// operation of this thread that was given no generator uses `generator` instead of the shared one.
///
/// How: for each operator with an optional generator a kernel is registered under a spare dispatch key that is active
/// only inside such a scope; it fills the generator in and passes the call on.
class GeneratorScope {
 public:
  /// null: back to LibTorch's own generator.
  explicit GeneratorScope(at::Generator* generator);
  ~GeneratorScope();
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  at::Generator* outer_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> active_;
};

/// The seed of replica `replica_id`'s stream. Replica 0's is the job's own, so that one replica draws the numbers of a
/// plain program after `torch::manual_seed`.
std::uint64_t replica_seed(std::uint64_t job_seed, int replica_id);

/// The seed of the k-th stream for some purpose ("make"), unrelated to any replica's.
std::uint64_t derived_seed(std::uint64_t job_seed, std::string_view purpose, int k);

/// The seed that LibTorch's shared CPU generator was last given.
std::uint64_t shared_generator_seed();

/// Remembers LibTorch's shared CPU generator, to notice when it is seeded.
class SharedGenerator {
 public:
  SharedGenerator();
  /// A second seeding with the same number is noticed if numbers were drawn before it and none after it.
  bool was_seeded_since() const;

 private:
  std::uint64_t seed_;
  bool fresh_;
};

}  // namespace lockstep
