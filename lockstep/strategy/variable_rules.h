#pragma once

#include <string>

#include "lockstep/base/export.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {

struct Write;  // strategy/variable_impl.h

/// The rules for a strategy's variables in which APIs differ. These are the main API's; other APIs derive and give their
/// strategies their own.
class LOCKSTEP_EXPORT VariableRules {
 public:
  virtual ~VariableRules() = default;

  /// Whether one client drives all replicas however many workers stand for it: OnlyFirstReplica is then the first of all, not of
  /// each worker.
  virtual bool is_one_client() const { return false; }

  /// Whether an OnRead variable without aggregation can be read outside of replicas, as the sum.
  virtual bool sums_without_aggregation() const { return false; }
  /// Throws unless an OnRead variable may be changed by a value, such as added to, outside of replicas.
  virtual void require_change_across(const Variable::Impl& variable, const Write& write) const;
  /// Throws unless a value that is on these devices can be assigned.
  virtual void require_placed(const Variable::Impl& variable, const Placement& placed) const;
  virtual std::string text(const Variable& variable) const;  ///< as printed
};

/// `rules` must live as long as the strategy.
LOCKSTEP_EXPORT void set_variable_rules(Strategy& strategy, const VariableRules& rules);
LOCKSTEP_EXPORT const VariableRules& variable_rules(const Strategy& strategy);

}  // namespace lockstep::detail
