#include "lockstep/nn/loss.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep {
namespace {

int replicas_here(const char* operation) {
  if (has_strategy() && in_cross_replica_context()) {
    throw FailedPrecondition(errors::kWrongContext,
                             {.what = str(operation, " belongs inside the function given to strategy.run"),
                              .help = "call it where the loss of one replica is computed, inside run"});
  }
  return get_strategy().num_replicas_in_sync();
}

}  // namespace

at::Tensor average_loss(const at::Tensor& per_example, std::optional<std::int64_t> global_batch) {
  const int replicas = replicas_here("average_loss");
  if (!per_example.defined() || !at::isFloatingType(per_example.scalar_type())) {
    throw InvalidArgument(errors::kDtype, {.what = "per-example losses must be a floating tensor",
                                           .where = "average_loss",
                                           .help = "compute them with reduction None: one number for each example"});
  }
  const std::int64_t batch = global_batch.value_or(per_example.dim() == 0 ? replicas : per_example.size(0) * replicas);
  if (batch <= 0 && global_batch) {
    throw InvalidArgument(errors::kBadOption, {.what = str("global_batch must be >= 1, got ", batch),
                                               .where = "average_loss",
                                               .help = "give the number of examples of all replicas, or leave it out"});
  }
  return per_example.sum().div(static_cast<double>(std::max<std::int64_t>(batch, 1)));  // nothing here: a share of 0
}

at::Tensor scale_regularization_loss(const at::Tensor& loss) {
  return loss.sum().div(static_cast<double>(replicas_here("scale_regularization_loss")));
}

}  // namespace lockstep
