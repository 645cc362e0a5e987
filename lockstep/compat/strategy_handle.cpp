#include "lockstep/compat/strategy_handle.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/compat/replica_context.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy_words.h"
#include "lockstep/strategy/variable_rules.h"
#include "lockstep/values/print.h"

namespace lockstep::compat {
namespace {

using Word = std::pair<std::string_view, std::string_view>;

/// The terms of both pages.
constexpr Word kWordsOfBoth[] = {
    {"loop over the dataset, or use get_next_as_optional",
     "stop at lockstep::OutOfRange, or call initialize() to start again"},
    {"a variable without aggregation cannot be written inside a replica of a strict strategy",
     "You must specify an aggregation method to write a mirrored variable inside a replica"},
    {"the value must be Mirrored: a PerReplica would",
     "Expected value to be mirrored across replicas, got a PerReplica: it would"},
    {"=distribute", "experimental_distribute_dataset"},
    {"strategy.make", "strategy.core().make"},
    {"strategy.make_optimizer", "strategy.core().make_optimizer"},
    {"strategy.set_seed", "strategy.core().set_seed"},
    {"make_numpy_dataset", "experimental_make_numpy_dataset"},
    {"before distribute()", "before experimental_distribute_dataset()"},
    {"strategy.distribute ", "strategy.experimental_distribute_dataset "},  // parts: strategy.|distribute
    {"distribute_from_function", "experimental_distribute_datasets_from_function"},
    {"strategy.local_results", "strategy.experimental_local_results"},
    {"read them with local_results", "read them with experimental_local_results"},
    {"ReduceOp::Sum", "ReduceOp::SUM"},
    {"ReduceOp::Mean", "ReduceOp::MEAN"},
    {"Implementation::Auto, Ring or Nccl", "CollectiveCommunication::AUTO, RING or NCCL"},
    {"AutoShardPolicy::Off", "AutoShardPolicy::OFF"},
    {"AutoShardPolicy::Data", "AutoShardPolicy::DATA"},
    {"AutoShardPolicy::Hint", "AutoShardPolicy::HINT"}};

constexpr Word kWordsOfV1[] = {
    {"from distribute, values_from_function or run of",
     "from experimental_distribute_dataset, experimental_distribute_values_from_function or a run of"},
    {"what run or values_from_function returned",
     "what experimental_distribute_values_from_function or a run returned"}};

/// Its page has neither run nor values_from_function, and reduce requires an axis.
constexpr Word kWordsOfV2[] = {
    {"=run", "experimental_run_v2"},
    {"run was called", "experimental_run_v2 was called"},
    {"given to run", "given to experimental_run_v2"},
    {"inside run", "inside experimental_run_v2"},
    {"strategy.run", "strategy.experimental_run_v2"},
    {"outside of run", "outside of experimental_run_v2"},
    {"of run", "of experimental_run_v2"},
    {"call run from", "call experimental_run_v2 from"},
    {"before run and give the step to run", "before experimental_run_v2 and pass it the step"},
    {"from distribute, values_from_function or run of",
     "from experimental_distribute_dataset or experimental_run_v2 of"},
    {"what run or values_from_function returned", "what experimental_run_v2 returned"},
    {"what run returned", "what experimental_run_v2 returned"},
    {"reduce without an axis", "reduce with None as the axis"},
    {"or leave the axis out", "or pass None"}};

template <std::size_t kFirst, std::size_t kSecond>
constexpr auto joined(const Word (&first)[kFirst], const Word (&second)[kSecond]) {
  std::array<Word, kFirst + kSecond> all;
  std::ranges::copy(second, std::ranges::copy(first, all.begin()).out);
  return all;
}

/// The scope opened by experimental_set_strategy on this thread. It keeps the strategy alive: the program may have
/// released it.
struct OpenedScope {
  std::optional<StrategyHandle> strategy;
  std::optional<Scope> scope;
  lockstep::detail::ContextEntry* entry = nullptr;
};
thread_local OpenedScope opened;

void replace_scope(std::optional<StrategyHandle> strategy) {
  if (lockstep::detail::current_context() != opened.entry) {
    throw FailedPrecondition(errors::kWrongContext,
                             {.what = "experimental_set_strategy was called inside a scope or a replica function",
                              .where = "experimental_set_strategy",
                              .help = "call it outside of strategy.scope(); inside of one the strategy is set"});
  }
  opened.scope.reset();
  opened.strategy = std::move(strategy);
  if (opened.strategy) opened.scope.emplace(opened.strategy->core());
  opened.entry = lockstep::detail::current_context();
}

class CompatRules final : public lockstep::detail::VariableRules {
  /// As TensorFlow 2.2 prints variables made in a strategy's scope.
  std::string text(const Variable& variable) const override {
    const bool is_on_read = variable.synchronization() == Synchronization::OnRead;
    std::string text = is_on_read ? "SyncOnReadVariable:{\n" : "MirroredVariable:{\n";
    for (std::size_t k = 0; k < variable.values().size(); ++k) {
      const at::Tensor& value = variable.values()[k];
      text += str(k == 0 ? "" : ",\n", "  ", k, ": <tf.Variable '", variable.component_name(k),
                  ":0' shape=", shape_repr(value.sizes()), " dtype=", dtype_name(value.scalar_type()),
                  ", numpy=", numpy_repr(value.detach()), ">");
    }
    return text + "\n}";
  }
};

}  // namespace

StrategyHandle::StrategyHandle(std::shared_ptr<lockstep::Strategy> core, Vocabulary words)
    : owned_(std::move(core)), held_(*owned_) {
  lockstep::detail::set_words(*owned_, words);
  static const CompatRules& rules = *new CompatRules;  // never destroyed: variables may outlive static objects
  lockstep::detail::set_variable_rules(*owned_, rules);
}

Vocabulary v1_words() {
  static constexpr auto kWords = joined(kWordsOfV1, kWordsOfBoth);
  return kWords;
}

Vocabulary v2_words() {
  static constexpr auto kWords = joined(kWordsOfV2, kWordsOfBoth);
  return kWords;
}

using lockstep::detail::StrategyAccess;
HeldStrategy::HeldStrategy(const Strategy& strategy) : strategy_(StrategyAccess::alive(strategy)) {}
Strategy& HeldStrategy::get() const {
  return StrategyAccess::require_alive(strategy_, "what get_strategy() or extended() has returned");
}

lockstep::ReplicaContext* current_replica() {
  return in_cross_replica_context() ? nullptr : &lockstep::get_replica_context();
}

namespace names {

void experimental_set_strategy(const StrategyHandle& strategy) { replace_scope(strategy); }
void experimental_set_strategy(std::nullopt_t) { replace_scope(std::nullopt); }

}  // namespace names
}  // namespace lockstep::compat
