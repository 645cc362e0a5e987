#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/snapshot_entries.h"
#include "lockstep/strategy/snapshot.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/variable_impl.h"

namespace lockstep {
namespace {

constexpr const char* kComponents = "components";

/// All components of a variable, which may differ between replicas.
class VariableState final : public Stateful {
 public:
  explicit VariableState(Variable variable) : variable_(std::move(variable)) {}

  void capture(Snapshot& into, const std::string& name) const override {
    if (variable_.is_distributed()) detail::require_between_runs(variable_.strategy(), "capture");
    if (is_by_replica()) return detail::put_by_replica(into, variable_.strategy(), entry(name), variable_.values());
    for (std::size_t k = 0; k < variable_.values().size(); ++k)
      detail::put_shared(into, str(entry(name), '_', k), variable_.values()[k]);
  }

  void check(const Snapshot& from, const std::string& name) const override { values_from(from, name); }

  void restore(const Snapshot& from, const std::string& name) override {
    if (variable_.is_distributed()) detail::require_between_runs(variable_.strategy(), "restore");
    const std::vector<at::Tensor> values = values_from(from, name);
    detail::write_components(*variable_.impl(),
                             [&](std::size_t k, at::Tensor& component) { component.copy_(values[k]); });
  }

 private:
  static std::string entry(const std::string& name) { return str(name, '/', kComponents); }
  bool is_by_replica() const {
    return variable_.is_distributed() && std::ssize(variable_.values()) == variable_.strategy().num_local_replicas();
  }

  std::vector<at::Tensor> values_from(const Snapshot& from, const std::string& name) const {
    detail::SnapshotReader reader(from, name);
    std::vector<at::Tensor> values;
    if (!is_by_replica()) {
      for (std::size_t k = 0; k < variable_.values().size(); ++k)
        values.push_back(reader.shared(str(kComponents, '_', k), variable_.values()[k]));
    } else if (reader.fits(variable_.strategy())) {
      values = reader.by_replica(kComponents, variable_.strategy());
    } else {
      values = for_other_replicas(reader);
    }
    for (const at::Tensor& value : values) {
      const at::Tensor& own = variable_.values()[0];
      if (value.sizes() != own.sizes() || value.scalar_type() != own.scalar_type())
        reader.refuse(kComponents, str("it is ", detail::form_of(value), ", the program's ", detail::form_of(own)));
    }
    reader.require_all_read();
    return values;
  }

  /// One value for all where the components are equal or have an aggregation; a sum goes to replica 0.
  std::vector<at::Tensor> for_other_replicas(detail::SnapshotReader& reader) const {
    const std::vector<at::Tensor> all = reader.of_all_replicas(kComponents);
    const auto copies = static_cast<std::size_t>(variable_.strategy().num_local_replicas());
    const bool is_sum =
        variable_.synchronization() == Synchronization::OnRead && variable_.aggregation() == Aggregation::Sum;
    if (is_sum) {  // exact, as parts of it would not be
      std::vector<at::Tensor> parts(copies, at::zeros_like(all[0]));
      if (variable_.strategy().is_chief()) parts[0] = ordered_reduce(ReduceOp::Sum, all);
      return parts;
    }
    const bool are_equal = std::ranges::all_of(all, [&](const at::Tensor& each) { return at::equal(each, all[0]); });
    if (are_equal || variable_.aggregation() == Aggregation::OnlyFirstReplica)
      return std::vector<at::Tensor>(copies, all[0]);
    if (variable_.synchronization() == Synchronization::OnRead && variable_.aggregation() == Aggregation::Mean)
      return std::vector<at::Tensor>(copies, ordered_reduce(ReduceOp::Mean, all));
    reader.by_replica(kComponents, variable_.strategy());  // throws: of another number of replicas
    return {};
  }

  Variable variable_;
};

}  // namespace

std::shared_ptr<Stateful> state_of(const Variable& variable) { return std::make_shared<VariableState>(variable); }

}  // namespace lockstep
