#include "lockstep/strategy/cross_device_ops.h"

#include <ATen/ops/cat.h>

#include <atomic>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/packing.h"
#include "lockstep/strategy/tensor_reduction.h"

namespace lockstep {
namespace {

at::Tensor copy_to(const at::Tensor& value, const std::string& device) {
  const at::Device target = torch_device(canonicalize(device));
  return value.device() == target ? value.clone() : value.to(target);
}

/// The first destination takes the value itself where it already is; every other one gets a copy of its own.
Mirrored<at::Tensor> spread(const at::Tensor& value, const Devices& destinations) {
  return Mirrored<at::Tensor>::generate(destinations.size(), [&](std::size_t k) {
    const bool in_place = k == 0 && value.device() == torch_device(canonicalize(destinations[0]));
    return in_place ? value : copy_to(value, destinations[k]);
  });
}

void warn_once_without_nccl() {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  say_warning(
      "NcclAllReduce needs GPUs, and the devices are CPUs: using the ordered sum instead, which gives the same results");
}

/// The leaves of several jobs as one flat tensor per replica, cut into packs; and back.
std::vector<Mirrored<at::Tensor>> reduce_packed(CrossDeviceOps& ops, ReduceOp op,
                                                const std::vector<CrossDeviceOps::Job>& jobs,
                                                const std::vector<std::size_t>& members,
                                                const std::vector<std::size_t>& pack_sizes,
                                                const CommunicationOptions& options) {
  const auto& first = jobs[members[0]];
  const std::size_t replicas = first.first.size();
  std::vector<at::Tensor> flat;
  for (std::size_t k = 0; k < replicas; ++k) {
    std::vector<at::Tensor> parts;
    for (const std::size_t m : members) parts.push_back(jobs[m].first[k].reshape({-1}));
    flat.push_back(at::cat(parts));
  }
  std::vector<at::Tensor> sums;
  std::int64_t begin = 0;
  for (const std::size_t size : pack_sizes) {
    auto piece = PerReplica<at::Tensor>::generate(
        replicas, [&](std::size_t k) { return flat[k].narrow(0, begin, static_cast<std::int64_t>(size)); });
    sums.push_back(ops.reduce(op, piece, {first.second[0]}, options)[0]);
    begin += static_cast<std::int64_t>(size);
  }
  const at::Tensor whole = at::cat(sums);
  std::vector<Mirrored<at::Tensor>> results;
  std::int64_t offset = 0;
  for (const std::size_t m : members) {
    const at::Tensor& like = jobs[m].first[0];
    results.push_back(spread(whole.narrow(0, offset, like.numel()).reshape(like.sizes()).clone(), jobs[m].second));
    offset += like.numel();
  }
  return results;
}

bool are_packable(const CrossDeviceOps::Job& a, const CrossDeviceOps::Job& b) {
  const auto are_alike = [](const at::Tensor& x, const at::Tensor& y) {
    return x.scalar_type() == y.scalar_type() && x.device() == y.device();
  };
  return a.second == b.second && std::ranges::equal(a.first.values(), b.first.values(), are_alike);
}

}  // namespace

CrossDeviceOps::~CrossDeviceOps() = default;

std::vector<Mirrored<at::Tensor>> CrossDeviceOps::batch_reduce(ReduceOp op, const std::vector<Job>& jobs,
                                                               const CommunicationOptions& options) {
  std::vector<Mirrored<at::Tensor>> results;
  results.reserve(jobs.size());
  for (const auto& [value, destinations] : jobs) results.push_back(reduce(op, value, destinations, options));
  return results;
}

Mirrored<IndexedSlices> CrossDeviceOps::reduce_slices(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                                      const Devices& destinations, const CommunicationOptions&) {
  const IndexedSlices all = concatenate_slices(op, value.values());
  const auto values = spread(all.values, destinations);
  const auto indices = spread(all.indices, destinations);
  return Mirrored<IndexedSlices>::generate(destinations.size(), [&](std::size_t k) {
    return IndexedSlices{values[k], indices[k], all.dense_shape};
  });
}

Mirrored<at::Tensor> CrossDeviceOps::broadcast(const at::Tensor& value, const Devices& destinations) {
  return Mirrored<at::Tensor>::generate(destinations.size(),
                                        [&](std::size_t k) { return copy_to(value, destinations[k]); });
}

Mirrored<at::Tensor> CrossDeviceOps::gather(const PerReplica<at::Tensor>& value, std::int64_t axis,
                                            const Devices& destinations, const CommunicationOptions&) {
  return spread(concatenate(value.values(), axis), destinations);
}

OrderedCrossDeviceOps::OrderedCrossDeviceOps(std::optional<int> num_packs) : num_packs_(num_packs) {
  check_num_packs(num_packs.value_or(0));
}

Mirrored<at::Tensor> OrderedCrossDeviceOps::reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                                   const Devices& destinations, const CommunicationOptions&) {
  return spread(ordered_reduce(op, value.values()), destinations);
}

Mirrored<at::Tensor> NcclAllReduce::reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                           const Devices& destinations, const CommunicationOptions& options) {
  if (value[0].is_cpu()) warn_once_without_nccl();
  return OrderedCrossDeviceOps::reduce(op, value, destinations, options);
}

std::vector<Mirrored<at::Tensor>> OrderedCrossDeviceOps::batch_reduce(ReduceOp op, const std::vector<Job>& jobs,
                                                                      const CommunicationOptions& options) {
  const bool by_count = num_packs_.value_or(0) > 0;
  const bool by_bytes = !num_packs_ && options.bytes_per_pack > 0;
  if (jobs.size() < 2 || (!by_count && !by_bytes)) return CrossDeviceOps::batch_reduce(op, jobs, options);

  std::vector<std::optional<Mirrored<at::Tensor>>> results(jobs.size());
  std::vector<bool> taken(jobs.size(), false);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (taken[i]) continue;
    // Values of one type that go to the same place travel together.
    std::vector<std::size_t> group;
    std::vector<std::size_t> sizes;
    std::vector<std::size_t> bytes;
    for (std::size_t j = i; j < jobs.size(); ++j) {
      if (taken[j] || !are_packable(jobs[i], jobs[j])) continue;
      taken[j] = true;
      require_equal_form(jobs[j].first.values(), "batch_reduce");
      group.push_back(j);
      sizes.push_back(static_cast<std::size_t>(jobs[j].first[0].numel()));
      bytes.push_back(static_cast<std::size_t>(jobs[j].first[0].nbytes()));
    }
    const auto reduce_group = [&](const std::vector<std::size_t>& members, const std::vector<std::size_t>& pack_sizes) {
      auto sums = reduce_packed(*this, op, jobs, members, pack_sizes, options);
      for (std::size_t m = 0; m < members.size(); ++m) results[members[m]] = std::move(sums[m]);
    };
    if (by_count) {
      reduce_group(group, concat_and_split_sizes(sizes, *num_packs_));
    } else {
      for (const auto& pack : group_by_size(bytes, options.bytes_per_pack)) {
        std::vector<std::size_t> members;
        std::size_t total = 0;
        for (const std::size_t p : pack) {
          members.push_back(group[p]);
          total += sizes[p];
        }
        reduce_group(members, {total});
      }
    }
  }
  std::vector<Mirrored<at::Tensor>> ordered;
  ordered.reserve(results.size());
  for (auto& result : results) ordered.push_back(std::move(*result));
  return ordered;
}

ReductionToOneDevice::ReductionToOneDevice(std::string reduce_to_device, Accumulate accumulate)
    : OrderedCrossDeviceOps(/*num_packs=*/0),
      reduce_to_device_(reduce_to_device.empty() ? "" : to_string(require_here(canonicalize(reduce_to_device)))),
      accumulate_(std::move(accumulate)) {}

Mirrored<at::Tensor> ReductionToOneDevice::reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                                  const Devices& destinations, const CommunicationOptions&) {
  const at::Device place =
      torch_device(canonicalize(reduce_to_device_.empty() ? destinations.at(0) : reduce_to_device_));
  std::vector<at::Tensor> components;
  for (const auto& component : value) components.push_back(component.to(place));
  if (!accumulate_) return spread(ordered_reduce(op, components), destinations);
  require_equal_form(components, "reduce");
  at::Tensor sum = accumulate_(components);
  for (const auto& component : components) {
    if (sum.is_alias_of(component)) sum = sum.clone();  // the result is the caller's own
  }
  return spread(op == ReduceOp::Mean ? divide_sum(sum, static_cast<std::int64_t>(components.size())) : sum,
                destinations);
}

std::shared_ptr<CrossDeviceOps> default_cross_device_ops() { return std::make_shared<OrderedCrossDeviceOps>(); }

}  // namespace lockstep
