#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/autocast.h"
#include "lockstep/nn/buffer_values.h"
#include "lockstep/nn/module_core.h"
#include "lockstep/nn/module_watch.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/state.h"
#include "lockstep/strategy/detail/snapshot_entries.h"

namespace lockstep {
namespace {

class ModelState final : public Stateful {
 public:
  explicit ModelState(std::shared_ptr<detail::ModuleCore> model) : model_(std::move(model)) {}

  void capture(Snapshot& into, const std::string& name) const override {
    detail::require_between_runs(model_->strategy(), "capture");
    model_->require_unchanged();
    if (model_->is_torn()) {
      throw FailedPrecondition(errors::kTornWeights, {.what = "the weights are torn: an update failed half-way",
                                                      .where = "capture",
                                                      .help = "restore an earlier snapshot or load a file first"});
    }
    const auto all = model_->tensors();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string entry = lockstep::str(name, '/', all[i].name);
      if (is_parameter(i))
        detail::put_shared(into, entry, all[i].leaves[0]);
      else
        detail::put_by_replica(into, model_->strategy(), entry, all[i].leaves);
    }
  }

  void check(const Snapshot& from, const std::string& name) const override {
    model_->require_unchanged();
    values_from(from, name);
  }

  void restore(const Snapshot& from, const std::string& name) override {
    detail::require_between_runs(model_->strategy(), "restore");
    model_->require_unchanged();
    const Values values = values_from(from, name);
    const c10::InferenceMode mode(model_->is_inference());  // later steps write to the restored tensors
    const at::NoGradGuard no_grad;
    const auto all = model_->tensors();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (is_parameter(i)) {
        detail::write_to_all(all[i].leaves, values[i][0]);
        continue;
      }
      for (std::size_t k = 0; k < all[i].leaves.size(); ++k) detail::set_buffer(all[i].leaves[k], values[i][k]);
    }
    model_->watch().expect_other_weights();
    detail::forget_cast_weights();
    model_->set_torn(false);
    model_->note_equal_buffers();
  }

 private:
  /// Per tensor of the model; for a buffer, per local replica.
  using Values = std::vector<std::vector<at::Tensor>>;

  bool is_parameter(std::size_t i) const { return i < model_->parameters().size(); }

  Values values_from(const Snapshot& from, const std::string& name) const {
    detail::SnapshotReader reader(from, name);
    Values values;
    const auto all = model_->tensors();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string& entry = all[i].name;
      const std::vector<at::Tensor>& leaves = all[i].leaves;
      if (is_parameter(i)) {
        values.push_back({reader.shared(entry, leaves[0])});
        continue;
      }
      if (reader.fits(model_->strategy()))
        values.push_back(reader.by_replica(entry, model_->strategy()));
      else
        values.emplace_back(leaves.size(), detail::buffers_as_one(reader.of_all_replicas(entry)));
      for (std::size_t k = 0; k < leaves.size(); ++k) {
        const at::Tensor& value = values.back()[k];
        if (value.sizes() != leaves[k].sizes() || value.scalar_type() != leaves[k].scalar_type()) {
          const std::string own = detail::form_of(leaves[k]);
          reader.refuse(entry, lockstep::str("it is ", detail::form_of(value), ", the program's ", own));
        }
        if (detail::has_shared_elements(leaves[k]) && !detail::holds_same(leaves[k], value))
          reader.refuse(entry, "the program's cannot be written to: several of its elements share memory");
      }
    }
    reader.require_all_read();
    return values;
  }

  std::shared_ptr<detail::ModuleCore> model_;
};

}  // namespace

std::shared_ptr<Stateful> detail::state_of_model(std::shared_ptr<ModuleCore> model) {
  return std::make_shared<ModelState>(std::move(model));
}

}  // namespace lockstep
