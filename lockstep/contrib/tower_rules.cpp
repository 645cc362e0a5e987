#include "lockstep/contrib/tower_rules.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/strategy_local.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/strategy/variable_rules.h"

namespace lockstep::contrib::detail {

struct ClientOfTowers {
  DistributionStrategy* client = nullptr;
};

namespace {

class TowerRules final : public lockstep::detail::VariableRules {
  bool is_one_client() const override { return true; }
  bool sums_without_aggregation() const override { return true; }

  /// TensorFlow's client would add to every tower's component what is meant for their sum or mean.
  void require_change_across(const Variable::Impl& variable, const lockstep::detail::Write& write) const override {
    throw FailedPrecondition(errors::kWrongContext,
                             {.what = str(write.name, " of an OnRead variable belongs inside replicas"),
                              .where = str("variable '", variable.options().name, "'"),
                              .help = str("call ", write.name, " inside run, or assign outside of it")});
  }

  /// The variable is on all workers: each of them refuses what one cannot do.
  void require_placed(const Variable::Impl& variable, const Placement& placed) const override {
    const std::size_t devices = placed.devices.size();
    const auto all = static_cast<std::size_t>(variable.strategy().num_replicas_in_sync());
    if (devices == 1 || devices == all) return;
    throw InvalidArgument(errors::kComponent,
                          {.what = str("a Mirrored on ", devices, " of ", all, " devices cannot be assigned"),
                           .where = str("variable '", variable.options().name, "'"),
                           .help = "reduce or broadcast it without naming devices: it is then on all of them"});
  }
};

}  // namespace

void set_client(Strategy& core, DistributionStrategy& client) {
  static const TowerRules& rules = *new TowerRules;  // never destroyed: variables may outlive static objects
  lockstep::detail::set_variable_rules(core, rules);
  lockstep::detail::strategy_local<ClientOfTowers>(core).client = &client;
}

DistributionStrategy* client_of(const Strategy& core) {
  const auto* const found = lockstep::detail::find_strategy_local<ClientOfTowers>(core);
  return found == nullptr ? nullptr : found->client;
}

}  // namespace lockstep::contrib::detail
