#include "lockstep/strategy/worker_collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "lockstep/base/fnv.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/disagreement.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/owners_call.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/values/const_data.h"

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

/// As CBOR, which lets texts hold any bytes.
at::Tensor bytes_of(const Texts& texts) { return at::tensor(nlohmann::json::to_cbor(texts), at::kByte); }

Texts texts_of(const at::Tensor& bytes) {
  const auto* const begin = const_data<std::uint8_t>(bytes);
  return nlohmann::json::from_cbor(begin, begin + bytes.numel()).get<Texts>();
}

struct PendingSums {
  ~PendingSums() {
    try {
      if (ticket) wait();
    } catch (const std::exception&) {  // the job has failed, which its next call says
    }
  }

  std::vector<std::int64_t> wait() {
    const WorkerGroup::Ticket begun = *std::exchange(ticket, std::nullopt);
    const auto alive = group.lock();
    if (!alive) {
      throw FailedPrecondition(errors::kMixedStrategies, {.what = lockstep::str(name, ": their strategy is gone"),
                                                          .help = "keep the strategy as long as what was made by it"});
    }
    alive->wait(begun);
    return numbers;
  }

  std::weak_ptr<WorkerGroup> group;   ///< once it is gone, nothing is under way
  std::vector<std::int64_t> numbers;  ///< the sums take the place of what this worker brings
  std::vector<std::int64_t> nothing = std::vector<std::int64_t>(numbers.size());
  std::string name;
  std::optional<WorkerGroup::Ticket> ticket;  ///< until it is awaited
};

/// One array in, which only the chief has to a broadcast, and one out.
void run(WorkerGroup& group, Collective what, const void* mine, void* all, const std::string& name,
         const Deadline& deadline) {
  if (what.kind != CollectiveKind::Broadcast || group.rank() == 0) what.inputs = {mine};
  what.outputs = {all};
  what.name = name;
  group.run(WorkerGroup::kProgram, what, deadline);
}

}  // namespace

void all_reduce(WorkerGroup& group, ReduceOp op, std::vector<Collective> sums, std::string_view name,
                const CommunicationOptions& options) {
  const Deadline deadline = deadline_of(options);
  const std::string base = begin_call(name);
  std::vector<WorkerGroup::Ticket> tickets;
  for (Collective& sum : sums) {
    sum.kind = CollectiveKind::AllReduce;
    sum.elements = static_cast<std::size_t>(c10::multiply_integers(sum.shape));
    sum.reduce = is_floating(sum.dtype) ? op : ReduceOp::Sum;
    sum.name = sums.size() == 1 ? base : lockstep::str(base, ", part ", tickets.size());
    // Integers travel as sums: that they become a mean is said by the name.
    if (op != sum.reduce) sum.name += ", mean";
    sum.implementation = options.implementation;
    tickets.push_back(group.submit(WorkerGroup::kProgram, sum, deadline));
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
  Collective sum{.dtype = *dtype};
  for (const at::Tensor& component : components) {
    inputs.push_back(plain(component));
    sum.inputs.push_back(inputs.back().const_data_ptr());
  }
  const at::Device device = components[0].device();
  at::Tensor result = device.is_cuda() ? gpu::make_pinned(inputs[0].sizes(), inputs[0].scalar_type())
                                       : at::empty(inputs[0].sizes(), inputs[0].options());
  sum.shape = result.sizes().vec();
  sum.outputs.push_back(result.data_ptr());
  all_reduce(group, op, {sum}, name, options);
  result = result.to(device);
  return op == ReduceOp::Mean && !is_floating(*dtype) ? divide_sum(result, group.all_replicas()) : result;
}

ReducibleLeaf reduce_leaf(WorkerGroup* group, ReduceOp op, const std::vector<ReducibleLeaf>& components,
                          std::string_view name, const CommunicationOptions& options) {
  if (std::holds_alternative<IndexedSlices>(components.at(0))) {
    std::vector<IndexedSlices> rows;
    for (const auto& component : components) rows.push_back(std::get<IndexedSlices>(component));
    return concatenate_slices(op, group ? all_gather(*group, rows, name, deadline_of(options)) : rows);
  }
  std::vector<at::Tensor> tensors;
  for (const auto& component : components) tensors.push_back(std::get<at::Tensor>(component));
  return group ? all_reduce(*group, op, tensors, name, options) : ordered_reduce(op, tensors);
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

void broadcast_bytes(WorkerGroup& group, void* data, std::size_t bytes, std::string_view name,
                     const Deadline& deadline) {
  run(group, {.kind = CollectiveKind::Broadcast, .dtype = Dtype::UInt8, .elements = bytes}, data, data,
      begin_call(name), deadline);
}

at::Tensor broadcast(WorkerGroup& group, const at::Tensor& value, std::string_view name, const Deadline& deadline) {
  std::int64_t form[kFormSize] = {};
  if (group.rank() == 0) write_form(value, form);
  broadcast_bytes(group, form, sizeof form, str("shape of ", name), deadline);
  require_form(form);
  const at::Tensor result = group.rank() == 0 ? plain(value).clone() : empty_of_form(form);
  if (result.nbytes() > 0) broadcast_bytes(group, result.data_ptr(), result.nbytes(), name, deadline);
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

void require_same(WorkerGroup& group, const Description& mine, std::string_view call, const Deadline& deadline) {
  std::uint64_t mark = 0;
  for (const std::string& line : mine.lines) mark = fnv1a<char>(line, mark + 1);
  const auto marks = all_gather(group, std::vector{static_cast<std::int64_t>(mark)}, call, deadline);
  if (std::ranges::count(marks, marks[0]) == std::ssize(marks)) return;
  const auto said = all_gather_texts(group, mine.lines, lockstep::str(call, ", what differs"), deadline);
  const auto text = disagreement(mine.what, said, workers_text, mine.help);
  if (!text) return;
  // Throwing may end the job, so every worker first learns what differs. The last one here may find the job ended already.
  try {
    group.barrier(lockstep::str(call, ", all know what differs"), deadline);
  } catch (const Error&) {
  }
  throw FailedPrecondition(mine.number, *text);
}

std::function<std::vector<std::int64_t>()> begin_sums(WorkerGroup& group, std::vector<std::int64_t> mine,
                                                      std::string_view name, const Deadline& deadline) {
  const std::shared_ptr<PendingSums> pending(
      new PendingSums{.group = group.weak_from_this(), .numbers = std::move(mine), .name = begin_call(name)});
  // Which of the local replicas brings the numbers does not matter.
  std::vector<const void*> inputs(static_cast<std::size_t>(group.replicas()), pending->nothing.data());
  inputs[0] = pending->numbers.data();
  pending->ticket = group.submit(WorkerGroup::kProgram,
                                 {.kind = CollectiveKind::AllReduce,
                                  .dtype = Dtype::Int64,
                                  .elements = pending->numbers.size(),
                                  .inputs = inputs,
                                  .outputs = {pending->numbers.data()},
                                  .name = pending->name},
                                 deadline);
  return [pending] { return pending->wait(); };
}

std::int64_t sum(WorkerGroup& group, std::int64_t value, std::string_view name, const Deadline& deadline) {
  return begin_sums(group, {value}, name, deadline)()[0];
}

}  // namespace lockstep::workers
