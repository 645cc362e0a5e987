#include "lockstep/nn/loss.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/nn/loss_tags.h"
#include "lockstep/nn/sizes_of_losses.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep {
namespace {

void require_inside_of_run(const char* operation) {
  if (!has_strategy() || !in_cross_replica_context()) return;
  throw FailedPrecondition(errors::kWrongContext,
                           {.what = lockstep::str(operation, " belongs inside the function given to strategy.run"),
                            .help = "call it where the loss of one replica is computed, inside run"});
}

void require_per_example(const at::Tensor& losses) {
  if (!losses.defined() || losses.scalar_type() == at::kBool || losses.is_complex()) {
    throw InvalidArgument(errors::kDtype,
                          {.what = "per-example losses must be a tensor of real numbers",
                           .where = "average_loss",
                           .seen = losses.defined() ? lockstep::str(losses.scalar_type()) : "an undefined tensor",
                           .help = "compute them with reduction None: one number for each example"});
  }
  if (losses.dim() > 0) return;
  throw InvalidArgument(
      errors::kShape,
      {.what = "average_loss needs one loss for each example, got a single number",
       .help =
           "compute the losses with reduction None, such as cross_entropy(guess, labels, "
           "CrossEntropyFuncOptions().reduction(torch::kNone)): a loss that is a mean already would be divided twice"});
}

/// The type in which losses are summed. As in TensorFlow, the quotient of integers is a float64. A sum of 16-bit losses
/// may overflow even if their mean does not.
at::ScalarType type_of_sum(const at::Tensor& losses) {
  if (!losses.is_floating_point()) return at::kDouble;
  return losses.element_size() < 4 ? at::kFloat : losses.scalar_type();
}

/// Each loss times its weight, in `type_of_sum`: small types may not hold the products either. LibTorch would broadcast
/// losses [n] and weights [n, 1] to a square.
at::Tensor weighted(const at::Tensor& losses, at::Tensor weight) {
  if (!weight.defined()) return losses;
  if (weight.numel() == 1) weight = weight.reshape({});
  if (weight.dim() == losses.dim() + 1 && weight.size(-1) == 1) weight = weight.squeeze(-1);
  while (weight.dim() > 0 && weight.dim() < losses.dim()) weight = weight.unsqueeze(-1);
  bool fits = weight.dim() <= losses.dim() && !weight.is_complex();
  for (std::int64_t d = 0; fits && d < weight.dim(); ++d)
    fits = weight.size(d) == losses.size(d) || (d > 0 && weight.size(d) == 1);
  if (!fits) {
    throw InvalidArgument(errors::kShape, {.what = "sample_weight must be one number, or one for each example",
                                           .where = "average_loss",
                                           .seen = lockstep::str("weights of shape ", weight.sizes(),
                                                                 " for losses of shape ", losses.sizes()),
                                           .help = "give a tensor of the losses' first dimensions"});
  }
  const at::ScalarType type = type_of_sum(losses);
  return losses.to(type).mul(weight.to(type));
}

/// The sum of `losses` divided by `count`, in the type of the program's losses.
at::Tensor divided(const at::Tensor& losses, std::int64_t count, at::ScalarType given) {
  const at::Tensor sum = losses.sum(type_of_sum(losses));
  at::Tensor share = sum.div(static_cast<double>(std::max<std::int64_t>(count, 1)));  // no losses here: a share of 0
  if (at::isFloatingType(given)) share = share.to(given);
  detail::tag_loss(share, detail::LossTag::Averaged);
  return share;
}

std::int64_t checked_size(std::int64_t global_batch) {
  if (global_batch > 0) return global_batch;
  throw InvalidArgument(errors::kBadOption, {.what = lockstep::str("global_batch must be >= 1, got ", global_batch),
                                             .where = "average_loss",
                                             .help = "give the number of examples of all replicas, or leave it out"});
}

/// The rows of the batch given to run, on all replicas; -1 if unknown without a meeting.
std::int64_t known_rows(const detail::ContextEntry& here) {
  const detail::StepRows& rows = here.notes->rows;
  if (rows.all >= 0) return rows.all;
  if (here.strategy->num_workers() > 1 || rows.here.empty()) return -1;
  return std::accumulate(rows.here.begin(), rows.here.end(), std::int64_t{0});
}

void warn_of_local_size(std::int64_t size, std::int64_t all) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  say_warning(lockstep::str("average_loss was given the size ", size,
                            ", the rows of only this replica, and the batch has ", all, ": its mean would be ",
                            static_cast<double>(all) / static_cast<double>(size),
                            " times too large. Leave the size out, or give the size over all replicas: "
                            "average_loss(losses, ls::global_rows(losses))"));
}

/// `rows`: how many losses the program passed.
at::Tensor divided_by_size(const at::Tensor& losses, std::int64_t rows, std::int64_t global_batch,
                           at::ScalarType given) {
  at::Tensor result = divided(losses, checked_size(global_batch), given);
  const detail::ContextEntry* const top = detail::current_context();
  if (top == nullptr || top->notes == nullptr) return result;
  const auto& here = top->notes->rows.here;
  if (here.empty() || here[static_cast<std::size_t>(top->replica->local_index())] != rows) return result;
  if (result.requires_grad())
    detail::run_local<detail::SizesOfLosses>()->last = global_batch;  // otherwise it is for a
                                                                      // log
  const std::int64_t all = known_rows(*top);
  if (global_batch == all) detail::tag_loss(result, detail::LossTag::OfOneBatch);
  if (global_batch == rows && rows < all) warn_of_local_size(rows, all);
  return result;
}

/// A replica's contribution to a common count. `call` numbers its calls of average_loss in this run.
struct Count {
  std::int64_t rows = 0;
  std::int64_t call = 0;
  mutable std::int64_t total = 0;  ///< over all workers
};

/// In a meeting: the rows of all replicas together.
std::int64_t sum_over_replicas(const Count& here, const char* meeting) {
  const detail::ContextEntry* top = detail::current_context();
  local::Seat* seat = top != nullptr && top->replica != nullptr ? top->replica->seat() : nullptr;
  if (seat == nullptr) return here.rows;
  std::int64_t total = 0;
  const auto add_up = [&] {
    for (int r = 0; r < seat->size(); ++r) {
      const auto& theirs = *static_cast<const Count*>(seat->payload_of(r));
      total += theirs.rows;
      if (theirs.call == static_cast<const Count*>(seat->payload_of(0))->call) continue;
      throw FailedPrecondition(
          errors::kDifferentCollective,
          {.what = "replicas disagree on which losses to count",
           .where = "average_loss",
           .seen = lockstep::str("on some replicas there is a loss for each row of the batch, on others not; ",
                                 detail::replica_name(static_cast<std::size_t>(r))),
           .help = "give the size where rows are left out: average_loss(losses, ls::global_rows(losses))"});
    }
  };
  const Deadline deadline = deadline_of(top->strategy->communication());
  WorkerGroup* const workers = detail::StrategyAccess::workers(*top->strategy);
  if (workers == nullptr) {
    seat->exchange(meeting, &here, add_up, deadline);
    return total;
  }
  // The first replica of each worker sums over its own, and returns the total over all workers.
  const auto add_up_all = [&] {
    add_up();
    total = workers::sum(*workers, total, lockstep::str(meeting, ", call ", here.call), deadline);
    for (int r = 0; r < seat->size(); ++r) static_cast<const Count*>(seat->payload_of(r))->total = total;
  };
  seat->lead(meeting, &here, add_up_all, deadline);
  return here.total;
}

}  // namespace

std::int64_t detail::count_losses(const at::Tensor& losses) {
  const std::int64_t here = losses.size(0);
  const detail::ContextEntry* top = detail::current_context();
  if (top == nullptr || top->notes == nullptr) return here;
  const detail::StepRows& step = top->notes->rows;
  const std::int64_t call = ++detail::run_local<detail::SizesOfLosses>()->counted;
  // All replicas must decide alike. They see the same batch, so none of them meets if each has one loss for each of its
  // rows. A replica without rows cannot recognize that case: if there is one, all meet. If they still decide
  // differently, the numbers of their calls or their meetings differ, which is detected. For batches of a distributed
  // dataset the other workers' rows are known.
  const auto& rows = step.here;
  const auto k = static_cast<std::size_t>(top->replica->local_index());
  if (!rows.empty() && rows[k] == here) {
    if (step.all >= 0) return step.all;
    if (top->strategy->num_workers() == 1 && std::find(rows.begin(), rows.end(), 0) == rows.end())
      return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  }
  return sum_over_replicas({here, call}, "average_loss that counts its losses (or give it ls::global_rows(losses))");
}

at::Tensor average_loss(const at::Tensor& per_example, const AverageLossOptions& options) {
  require_inside_of_run("average_loss");
  require_per_example(per_example);
  const at::Tensor losses = weighted(per_example, options.sample_weight);
  const at::ScalarType given = per_example.scalar_type();
  if (options.global_batch) return divided_by_size(losses, per_example.size(0), *options.global_batch, given);
  at::Tensor result = divided(losses, detail::count_losses(per_example), given);
  detail::tag_loss(result, detail::LossTag::Unsized);
  return result;
}

at::Tensor average_loss(const at::Tensor& per_example, std::optional<std::int64_t> global_batch) {
  return average_loss(per_example, AverageLossOptions{.global_batch = global_batch});
}

at::Tensor compute_average_loss(const at::Tensor& per_example, const AverageLossOptions& options) {
  require_inside_of_run("compute_average_loss");
  require_per_example(per_example);
  const at::Tensor losses = weighted(per_example, options.sample_weight);
  const at::ScalarType given = per_example.scalar_type();
  if (options.global_batch) return divided_by_size(losses, per_example.size(0), *options.global_batch, given);
  at::Tensor result = divided(losses, per_example.size(0) * get_strategy().num_replicas_in_sync(), given);
  detail::tag_loss(result, detail::LossTag::Unsized);
  return result;
}

std::int64_t global_rows(const at::Tensor& mine) {
  require_inside_of_run("global_rows of a tensor");
  if (!mine.defined() || mine.dim() == 0) {
    throw InvalidArgument(errors::kShape, {.what = "global_rows needs a tensor with rows",
                                           .seen = mine.defined() ? "a single number" : "an undefined tensor",
                                           .help = "give a batch, or the losses of its examples"});
  }
  return sum_over_replicas({.rows = mine.size(0)}, "global_rows");
}

at::Tensor scale_regularization_loss(const at::Tensor& loss) {
  require_inside_of_run("scale_regularization_loss");
  if (!loss.defined()) {
    throw InvalidArgument(errors::kShape,
                          {.what = "a regularization loss must be a tensor, got an undefined one",
                           .where = "scale_regularization_loss",
                           .help = "compute it from the weights, such as model->weight.square().sum()"});
  }
  return loss.sum().div(static_cast<double>(get_strategy().num_replicas_in_sync()));
}

}  // namespace lockstep
