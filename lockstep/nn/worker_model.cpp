#include "lockstep/nn/worker_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/buffer_values.h"
#include "lockstep/nn/module_core.h"
#include "lockstep/nn/tensor_digest.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::detail {
namespace {

using Named = torch::OrderedDict<std::string, at::Tensor>;

/// A large file is sent in parts, so that each has its own time limit.
constexpr std::size_t kFilePart = 256 << 20;

/// Sparse and read-only tensors stay in place: all workers must have made the same ones.
bool travels(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !has_shared_elements(tensor);
}

std::string form_of(const char* what, const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) return lockstep::str(what, " ", name, ": undefined");
  std::string form = lockstep::str(what, " ", name, ": ", tensor.scalar_type(), tensor.sizes(),
                                   tensor.requires_grad() ? ", trained" : "");
  if (travels(tensor)) return form;
  form += lockstep::str(", ", tensor.layout(), " with the digests");
  for (const at::Tensor& part : dense_parts_of(tensor)) form += lockstep::str(' ', digest_of(part));
  return form;
}

}  // namespace

ConstructionRng::ConstructionRng(const Strategy& strategy, const std::vector<at::Device>& devices)
    : chiefs_(shared_generators_of(devices)) {
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return;
  own_.emplace(chiefs_);
  bool are_equal = true;
  for (std::size_t i = 0; i < chiefs_.states().size(); ++i) {
    at::Tensor& state = chiefs_.states()[i];
    state = state.clone();
    workers::broadcast_bytes(*workers, state.mutable_data_ptr(), state.nbytes(), "make: model",
                             deadline_of(strategy.communication()));
    are_equal = are_equal && at::equal(state, own_->states()[i]);
  }
  if (are_equal) own_.reset();
}

ConstructionRng::~ConstructionRng() {
  if (own_) own_->restore();
}

void ConstructionRng::begin_build(bool is_first) const {
  if (!is_first || own_) chiefs_.restore();
}

void do_on_chief(const Strategy& strategy, const char* what, FunctionRef<void()> act, std::optional<Deadline> limit) {
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return act();
  std::exception_ptr failure;
  std::string seen;
  if (workers->rank() == 0) {
    try {
      act();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      seen = *error.what() != '\0' ? error.what() : "unknown";
    }
  }
  const auto name = lockstep::str("outcome of ", what);
  seen = workers::broadcast_texts(*workers, {seen}, name, limit.value_or(deadline_of(strategy.communication())))[0];
  if (failure) std::rethrow_exception(failure);
  if (seen.empty()) return;
  throw FailedPrecondition(errors::kPeerFailed, {.what = lockstep::str(what, " failed on the chief"),
                                                 .seen = seen,
                                                 .help = lockstep::str("fix the cause that `seen` names, then call ",
                                                                       what, " again on every worker")});
}

data::MappedFile chiefs_file(const Strategy& strategy, const std::string& path) {
  std::optional<data::MappedFile> file;
  do_on_chief(strategy, "load", [&] { file.emplace(path); });
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return std::move(*file);
  const auto share = [&](void* data, std::size_t bytes, const char* what) {
    workers::broadcast_bytes(*workers, data, bytes, what, deadline_of(strategy.communication()));
  };
  std::size_t size = file ? file->bytes().size() : 0;
  share(&size, sizeof size, "size of a file");
  if (!file) file.emplace(path, size);
  for (std::size_t at = 0; at < size; at += kFilePart)
    share(file->data() + at, std::min(kFilePart, size - at), "part of a file");
  return std::move(*file);
}

void take_chiefs_values(const ModuleCore& model) {
  const Strategy& strategy = model.strategy();
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return;
  const Named buffers = model.buffers_of(0);
  workers::Texts lines;
  for (const auto& parameter : model.parameters())
    lines.push_back(form_of("parameter", parameter.name, parameter.leaves[0]));
  for (const auto& buffer : buffers) lines.push_back(form_of("buffer", buffer.key(), buffer.value()));
  workers::require_same(*workers, {.what = "model", .lines = std::move(lines)}, "make: model",
                        deadline_of(strategy.communication()));

  const at::NoGradGuard no_grad;
  const auto take = [&](at::Tensor value, const std::string& name) {
    if (travels(value) && value.numel() > 0)
      value.copy_(
          workers::broadcast(*workers, value, "initial value of " + name, deadline_of(strategy.communication())));
  };
  for (const auto& parameter : model.parameters()) take(parameter.leaves[0].detach(), parameter.name);
  for (const auto& buffer : buffers) take(buffer.value(), buffer.key());
}

void require_same_weights(const ModuleCore& model) {
  workers::Texts lines;
  for (const auto& parameter : model.parameters())
    lines.push_back(lockstep::str("parameter ", parameter.name, " with the digest ", digest_of(parameter.leaves[0])));
  workers::require_same(*StrategyAccess::workers(model.strategy()),
                        {.what = "model after its update",
                         .lines = std::move(lines),
                         .help = "change the weights by what all towers share; call model.synchronize_buffers() before "
                                 "if the change depends on buffers"},
                        "update of a model", deadline_of(model.strategy().communication()));
}

std::vector<Named> buffers_of_all_workers(const ModuleCore& model) {
  std::vector<Named> here;
  for (std::size_t k = 0; k < model.size(); ++k) here.push_back(model.buffers_of(k));
  const Strategy& strategy = model.strategy();
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr || here[0].is_empty()) return here;

  std::vector<at::Tensor> mine;
  for (const Named& buffers : here) {
    for (const auto& item : buffers) {
      if (travels(item.value())) mine.push_back(item.value());
    }
  }
  const auto all = workers::all_gather(*workers, mine, "buffers of a model", deadline_of(strategy.communication()));
  std::vector<Named> result;
  auto next = all.begin();
  for (int k = 0; k < workers->all_replicas(); ++k) {
    Named buffers;
    for (const auto& item : here[0]) buffers.insert(item.key(), travels(item.value()) ? *next++ : item.value());
    result.push_back(std::move(buffers));
  }
  return result;
}

}  // namespace lockstep::detail
