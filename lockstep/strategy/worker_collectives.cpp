#include "lockstep/strategy/worker_collectives.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/owners_call.h"
#include "lockstep/strategy/tensor_reduction.h"

namespace lockstep::workers {
namespace {

/// The form of a tensor as numbers that travel: type, rank, sizes.
constexpr std::size_t kMostDims = 14;
constexpr std::size_t kFormSize = 2 + kMostDims;

/// The name under which workers compare a collective that begins here. Throws in a function that only one of them calls.
std::string begin_call(std::string_view name) {
  detail::require_call_of_all_workers("a call that concerns all workers");
  const std::string place = detail::CallPlace::current();
  return place.empty() ? std::string(name) : lockstep::str(name, " (", place, ")");
}

at::Tensor plain(const at::Tensor& value) {
  const at::Tensor here = value.detach().resolve_neg().resolve_conj();
  return (here.is_cuda() ? gpu::make_pinned(here.sizes(), here.scalar_type()).copy_(here) : here.cpu()).contiguous();
}

/// What `form` says in place of the rank of a tensor that cannot travel. Others learn it too, so that all throw.
constexpr std::int64_t kUndefined = -1;
constexpr std::int64_t kNotStrided = -2;

void write_form(const at::Tensor& value, std::int64_t* form) {
  if (!value.defined() || value.layout() != at::kStrided) {
    form[1] = value.defined() ? kNotStrided : kUndefined;
    return;
  }
  form[0] = static_cast<std::int64_t>(value.scalar_type());
  form[1] = value.dim();
  for (std::size_t d = 0; d < std::min<std::size_t>(kMostDims, value.sizes().size()); ++d)
    form[2 + d] = value.sizes()[d];
}

void require_form(const std::int64_t* form) {
  if (form[1] == kUndefined) {
    throw InvalidArgument(errors::kShape, {.what = "an undefined tensor cannot travel between workers",
                                           .help = "give a tensor with values, such as torch::zeros({})"});
  }
  if (form[1] == kNotStrided) {
    throw Unimplemented(errors::kShape, {.what = "a sparse tensor cannot travel between workers",
                                         .help = "call to_dense() on it, or give its rows as ls::IndexedSlices to "
                                                 "strategy.reduce"});
  }
  if (form[1] > static_cast<std::int64_t>(kMostDims)) {
    throw Unimplemented(errors::kShape,
                        {.what = lockstep::str("a tensor of ", form[1], " dimensions cannot travel between workers"),
                         .help = lockstep::str("reshape it to at most ", kMostDims, " dimensions")});
  }
}

at::Tensor empty_of_form(const std::int64_t* form) {
  const at::IntArrayRef sizes(form + 2, static_cast<std::size_t>(form[1]));
  return at::empty(sizes, at::TensorOptions().dtype(static_cast<at::ScalarType>(form[0])));
}

/// The length of each text, then its bytes, which may be any.
at::Tensor bytes_of(const Texts& texts) {
  std::string all;
  for (const std::string& text : texts) {
    const std::uint64_t size = text.size();
    all.append(reinterpret_cast<const char*>(&size), sizeof size).append(text);
  }
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(all.size())}, at::kByte);
  if (!all.empty()) std::memcpy(bytes.data_ptr(), all.data(), all.size());
  return bytes;
}

Texts texts_of(const at::Tensor& bytes) {
  Texts texts;
  const auto* const begin = static_cast<const char*>(bytes.const_data_ptr());
  for (std::size_t at = 0; at < bytes.nbytes(); at += texts.back().size()) {
    std::uint64_t size = 0;
    std::memcpy(&size, begin + at, sizeof size);
    at += sizeof size;
    texts.emplace_back(begin + at, size);
  }
  return texts;
}

/// One array in, which only the chief has to a broadcast, and one out.
void run(WorkerGroup& group, Collective what, const void* mine, void* all, const std::string& name,
         const Deadline& deadline) {
  if (what.kind != CollectiveKind::Broadcast || group.rank() == 0) what.inputs = {&mine, 1};
  what.outputs = {&all, 1};
  what.name = name;
  group.run(WorkerGroup::kProgram, what, deadline);
}

}  // namespace

void all_reduce(WorkerGroup& group, ReduceOp op, const std::vector<SumOfArrays>& sums, std::string_view name,
                const CommunicationOptions& options) {
  const Deadline deadline = deadline_of(options);
  const std::string base = begin_call(name);
  std::vector<WorkerGroup::Ticket> tickets;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const SumOfArrays& sum = sums[i];
    std::string part = sums.size() == 1 ? base : lockstep::str(base, ", part ", i);
    // Integers travel as sums: that they become a mean is said by the name.
    if (op == ReduceOp::Mean && !is_floating(sum.dtype)) part += ", mean";
    tickets.push_back(group.submit(WorkerGroup::kProgram,
                                   {.kind = CollectiveKind::AllReduce,
                                    .dtype = sum.dtype,
                                    .elements = static_cast<std::size_t>(c10::multiply_integers(sum.shape)),
                                    .inputs = sum.inputs,
                                    .outputs = sum.outputs,
                                    .reduce = is_floating(sum.dtype) ? op : ReduceOp::Sum,
                                    .shape = std::span<const std::int64_t>(sum.shape.data(), sum.shape.size()),
                                    .name = part,
                                    .implementation = options.implementation},
                                   deadline));
  }
  for (const auto ticket : tickets) group.wait(ticket);
}

at::Tensor all_reduce(WorkerGroup& group, ReduceOp op, const std::vector<at::Tensor>& components, std::string_view name,
                      const CommunicationOptions& options) {
  require_equal_form(components, "reduce");
  std::int64_t form[kFormSize] = {};
  write_form(components[0], form);
  if (form[1] < 0) require_form(form);
  const auto dtype = engine_dtype(components[0].scalar_type());
  if (!dtype) return ordered_reduce(op, all_gather(group, components, name, deadline_of(options)));
  std::vector<at::Tensor> inputs;
  SumOfArrays sum{.dtype = *dtype};
  for (const at::Tensor& component : components) {
    inputs.push_back(plain(component));
    sum.inputs.push_back(inputs.back().const_data_ptr());
  }
  const at::Device device = components[0].device();
  at::Tensor result = device.is_cuda() ? gpu::make_pinned(inputs[0].sizes(), inputs[0].scalar_type())
                                       : at::empty(inputs[0].sizes(), inputs[0].options());
  sum.shape = result.sizes();
  sum.outputs.push_back(result.data_ptr());
  all_reduce(group, op, {sum}, name, options);
  result = result.to(device);
  return op == ReduceOp::Mean && !is_floating(*dtype) ? divide_sum(result, group.all_replicas()) : result;
}

std::vector<at::Tensor> all_gather(WorkerGroup& group, const std::vector<at::Tensor>& mine, std::string_view name,
                                   const Deadline& deadline) {
  const std::string base = begin_call(name);
  const auto workers = static_cast<std::size_t>(group.workers());
  std::vector<std::int64_t> forms(mine.size() * kFormSize);
  for (std::size_t i = 0; i < mine.size(); ++i) write_form(mine[i], forms.data() + i * kFormSize);
  const auto all_forms = all_gather(group, forms, str(name, ", shapes"), deadline);

  std::vector<at::Tensor> all;
  std::vector<std::uint64_t> bytes(workers, 0);
  for (std::size_t i = 0; i < workers * mine.size(); ++i) require_form(all_forms.data() + i * kFormSize);
  for (std::size_t i = 0; i < workers * mine.size(); ++i) {
    all.push_back(empty_of_form(all_forms.data() + i * kFormSize));
    bytes[i / mine.size()] += all.back().nbytes();
  }
  // At any size in one message: arrays of different types cannot share memory without gaps.
  std::string sent, received(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}), '\0');
  for (const at::Tensor& given : mine) {
    if (given.numel() == 0) continue;
    const at::Tensor tensor = plain(given);
    sent.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  const Collective gather{
      .kind = CollectiveKind::AllGather, .dtype = Dtype::UInt8, .elements = received.size(), .counts = bytes};
  if (!received.empty()) run(group, gather, sent.data(), received.data(), base, deadline);
  const char* next = received.data();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].nbytes() > 0) std::memcpy(all[i].data_ptr(), next, all[i].nbytes());
    next += all[i].nbytes();
    all[i] = all[i].to(mine[i % mine.size()].device());
  }
  return all;
}

std::vector<IndexedSlices> all_gather(WorkerGroup& group, const std::vector<IndexedSlices>& mine, std::string_view name,
                                      const Deadline& deadline) {
  std::vector<at::Tensor> tensors;
  for (const IndexedSlices& rows : mine) tensors.insert(tensors.end(), {rows.values, rows.indices});
  const auto all = all_gather(group, tensors, name, deadline);
  std::vector<IndexedSlices> result;
  for (std::size_t i = 0; i < all.size(); i += 2) result.push_back({all[i], all[i + 1], mine[0].dense_shape});
  return result;
}

std::vector<std::int64_t> all_gather(WorkerGroup& group, const std::vector<std::int64_t>& mine, std::string_view name,
                                     const Deadline& deadline) {
  const std::vector<std::uint64_t> counts(static_cast<std::size_t>(group.workers()), mine.size());
  std::vector<std::int64_t> all(counts.size() * mine.size());
  run(group, {.kind = CollectiveKind::AllGather, .dtype = Dtype::Int64, .elements = all.size(), .counts = counts},
      mine.data(), all.data(), begin_call(name), deadline);
  return all;
}

at::Tensor broadcast(WorkerGroup& group, const at::Tensor& value, std::string_view name, const Deadline& deadline) {
  const std::string base = begin_call(name);
  const auto broadcast_bytes = [&](void* data, std::size_t bytes, const std::string& what) {
    run(group, {.kind = CollectiveKind::Broadcast, .dtype = Dtype::UInt8, .elements = bytes}, data, data, what,
        deadline);
  };
  std::int64_t form[kFormSize] = {};
  if (group.rank() == 0) write_form(value, form);
  broadcast_bytes(form, sizeof form, base + ", shape");
  require_form(form);
  const at::Tensor result = group.rank() == 0 ? plain(value).clone() : empty_of_form(form);
  if (result.nbytes() > 0) broadcast_bytes(result.data_ptr(), result.nbytes(), base);
  return value.defined() ? result.to(value.device()) : result;
}

Texts broadcast_texts(WorkerGroup& group, const Texts& texts, std::string_view name, const Deadline& deadline) {
  return texts_of(broadcast(group, bytes_of(texts), name, deadline));
}

std::vector<Texts> all_gather_texts(WorkerGroup& group, const Texts& mine, std::string_view name,
                                    const Deadline& deadline) {
  std::vector<Texts> all;
  for (const at::Tensor& bytes : all_gather(group, std::vector{bytes_of(mine)}, name, deadline))
    all.push_back(texts_of(bytes));
  return all;
}

PendingSums::PendingSums(WorkerGroup& group, std::vector<std::int64_t> mine, std::string_view name,
                         const Deadline& deadline)
    : group_(group.weak_from_this()),
      mine_(std::move(mine)),
      nothing_(mine_.size(), 0),
      sums_(mine_.size(), 0),
      name_(begin_call(name)) {
  // Which of the local replicas brings the numbers does not matter.
  std::vector<const void*> inputs(static_cast<std::size_t>(group.replicas()), nothing_.data());
  inputs[0] = mine_.data();
  void* const output = sums_.data();
  ticket_ = group.submit(WorkerGroup::kProgram,
                         {.kind = CollectiveKind::AllReduce,
                          .dtype = Dtype::Int64,
                          .elements = mine_.size(),
                          .inputs = inputs,
                          .outputs = {&output, 1},
                          .name = name_},
                         deadline);
}

PendingSums::~PendingSums() {
  if (is_awaited_) return;
  try {
    wait();
  } catch (const std::exception&) {  // the job has failed, which its next call says
  }
}

std::vector<std::int64_t> PendingSums::wait() {
  is_awaited_ = true;
  const auto group = group_.lock();
  if (!group) {
    throw FailedPrecondition(errors::kMixedStrategies, {.what = lockstep::str(name_, ": their strategy is gone"),
                                                        .help = "keep the strategy as long as what was made by it"});
  }
  group->wait(ticket_);
  return sums_;
}

std::int64_t sum(WorkerGroup& group, std::int64_t value, std::string_view name, const Deadline& deadline) {
  return PendingSums(group, {value}, name, deadline).wait()[0];
}

}  // namespace lockstep::workers
