#include "lockstep/contrib/tower_values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::contrib {

TowerValue::TowerValue(const Variable& variable)
    : kind_(!variable.is_distributed()                              ? Kind::Plain
            : variable.synchronization() == Synchronization::OnRead ? Kind::PerDevice
                                                                    : Kind::Mirrored),
      components_(variable.values()) {}

at::Tensor TowerValue::tensor() const {
  if (kind_ == Kind::Plain) return components_.at(0);
  return kind_ == Kind::Mirrored ? lockstep::Mirrored<at::Tensor>(components_).get()
                                 : PerReplica<at::Tensor>(components_).get();
}

TowerDestinations::TowerDestinations(std::vector<std::string> devices) : devices_(std::move(devices)) {
  if (devices_.empty())
    throw InvalidArgument(errors::kDestination,
                          {.what = "destinations can not be empty", .help = "name a device, or pass the value itself"});
}

TowerDestinations::TowerDestinations(const TowerValue& value) {
  if (value.kind() == TowerValue::Kind::Plain)
    value_ = value.tensor();
  else
    value_ = PerReplica<at::Tensor>(value.local_values());
}

template <class T>
Mirrored<T> TowerDestinations::deliver(Strategy& core, const Devices& of_all_towers, const T& value) const {
  if (value_) return core.extended().broadcast_to(value, *value_);
  if (devices_.empty()) {
    const std::vector<int> one_each(static_cast<std::size_t>(core.num_local_replicas()));
    return core.extended().broadcast_to(value, PerReplica<int>(one_each));
  }
  const std::string& here = core.devices()[0];
  return Mirrored<T>::generate(devices_.size(), [&](std::size_t k) {
    const DeviceName wanted = canonicalize(devices_[k], here);
    const auto is_there = [&](const std::string& tower) {
      const DeviceName name = parse_device(tower);
      return name.job == wanted.job && name.task == wanted.task;
    };
    if (std::none_of(of_all_towers.begin(), of_all_towers.end(), is_there)) {
      throw InvalidArgument(errors::kDevice, {.what = str("no worker of this strategy has the device ", devices_[k]),
                                              .help = "name a device like those of worker_devices()"});
    }
    return core.extended().broadcast_to(value, is_there(here) ? devices_[k] : here)[0];
  });
}
template Mirrored<at::Tensor> TowerDestinations::deliver(Strategy&, const Devices&, const at::Tensor&) const;
template Mirrored<IndexedSlices> TowerDestinations::deliver(Strategy&, const Devices&, const IndexedSlices&) const;

namespace detail {
namespace {

/// The tensors that a part travels as: of sparse rows the values, the indices and the shape of the whole.
void append_tensors(const ReducibleLeaf& leaf, std::vector<at::Tensor>& tensors) {
  if (const auto* rows = std::get_if<IndexedSlices>(&leaf))
    tensors.insert(tensors.end(), {rows->values, rows->indices, at::tensor(rows->dense_shape, at::kLong)});
  else
    tensors.push_back(std::get<at::Tensor>(leaf));
}

/// The part that came as the tensors from `next` on; `like` says what it is.
ReducibleLeaf take_leaf(const ReducibleLeaf& like, std::vector<at::Tensor>::const_iterator& next) {
  if (std::holds_alternative<at::Tensor>(like)) return *next++;
  IndexedSlices rows{next[0], next[1], {}};
  rows.dense_shape.assign(next[2].const_data_ptr<std::int64_t>(),
                          next[2].const_data_ptr<std::int64_t>() + next[2].numel());
  next += 3;
  return rows;
}

/// Of the texts of all towers, which begin with the number of values.
void require_one_structure(const std::vector<std::string>& texts, std::size_t towers_per_worker,
                           const std::string& of_none) {
  std::set<std::string> structures;
  for (const std::string& text : texts) {
    std::istringstream lines(text.substr(text.find('\n') + 1));
    for (std::string line; std::getline(lines, line);) structures.insert(line);
  }
  for (std::size_t first = 0; first < texts.size(); first += towers_per_worker) {
    const auto has_none = [](const std::string& text) { return text.starts_with("0\n"); };
    const auto its = texts.begin() + static_cast<std::ptrdiff_t>(first);
    if (std::all_of(its, its + static_cast<std::ptrdiff_t>(towers_per_worker), has_none)) structures.insert(of_none);
  }
  if (structures.size() < 2) return;
  std::string seen;
  for (const std::string& structure : structures) seen += str(seen.empty() ? "" : " and ", structure);
  throw InvalidArgument(
      errors::kStructure,
      {.what = "the values of towers on several workers must have one structure",
       .seen = std::move(seen),
       .help = "give the same structure on every tower, with an empty tensor where one lacks something"});
}

}  // namespace

std::vector<at::Tensor> all_towers(const Strategy& core, const std::vector<at::Tensor>& mine) {
  WorkerGroup* workers = lockstep::detail::StrategyAccess::workers(core);
  if (workers == nullptr) return mine;
  return workers::all_gather(*workers, mine, "values of towers", deadline_of(core.communication()));
}

std::vector<std::string> all_towers(const Strategy& core, const std::vector<std::string>& mine) {
  WorkerGroup* workers = lockstep::detail::StrategyAccess::workers(core);
  if (workers == nullptr) return mine;
  std::vector<std::string> all;
  for (const auto& texts :
       workers::all_gather_texts(*workers, mine, "texts of towers", deadline_of(core.communication())))
    all.insert(all.end(), texts.begin(), texts.end());
  return all;
}

std::vector<std::vector<Leaves>> all_leaves(const Strategy& core, const std::vector<std::vector<Leaves>>& mine,
                                            const std::vector<std::set<std::string>>& structures, const Leaves& like,
                                            const std::string& of_none) {
  std::vector<std::string> texts;
  for (std::size_t k = 0; k < mine.size(); ++k) {
    texts.push_back(str(mine[k].size(), '\n'));
    for (const std::string& structure : structures[k]) texts.back() += structure + '\n';
  }
  texts = all_towers(core, texts);
  require_one_structure(texts, mine.size(), of_none);
  std::vector<std::size_t> counts;
  for (const std::string& text : texts) counts.push_back(std::strtoul(text.c_str(), nullptr, 10));

  // Every tower sends as many tensors as the one with the most values.
  std::vector<at::Tensor> of_one;
  for (const ReducibleLeaf& leaf : like) append_tensors(leaf, of_one);
  const std::size_t each = *std::max_element(counts.begin(), counts.end()) * of_one.size();
  std::vector<at::Tensor> tensors;
  for (std::size_t k = 0; k < mine.size(); ++k) {
    for (const Leaves& value : mine[k])
      for (const ReducibleLeaf& leaf : value) append_tensors(leaf, tensors);
    tensors.resize((k + 1) * each, at::empty({0}));
  }
  tensors = all_towers(core, tensors);
  std::vector<std::vector<Leaves>> all(counts.size());
  for (std::size_t tower = 0; tower < counts.size(); ++tower) {
    auto next = tensors.cbegin() + static_cast<std::ptrdiff_t>(tower * each);
    for (all[tower].resize(counts[tower]); Leaves & value : all[tower])
      for (const ReducibleLeaf& leaf : like) value.push_back(take_leaf(leaf, next));
  }
  return all;
}

namespace {

template <class... Parts>
[[noreturn]] void throw_not_reducible(const char* operation, std::string help, const Parts&... what) {
  throw InvalidArgument(errors::kNotReducible, {.what = str(what...), .where = operation, .help = std::move(help)});
}

void require_aggregation(VariableAggregation aggregation, const char* operation) {
  if (aggregation != Aggregation::None) return;
  throw_not_reducible(operation, "pass ReduceOp::SUM or MEAN",
                      "the aggregation must be ReduceOp::SUM or MEAN, got NONE");
}

template <class T>
T of_each_tower(Strategy& core, VariableAggregation aggregation, const PerReplica<T>& value) {
  if (aggregation == Aggregation::OnlyFirstReplica) return core.broadcast(value[0]);
  return core.reduce(aggregation == Aggregation::Sum ? ReduceOp::Sum : ReduceOp::Mean, value);
}

at::Tensor of_map_outputs(Strategy& core, VariableAggregation aggregation, const TowerValue& value,
                          const char* operation) {
  std::vector<std::vector<at::Tensor>> lists;
  auto next = value.local_values().begin();
  for (const std::size_t count : value.items()) {
    lists.emplace_back(next, next + static_cast<std::ptrdiff_t>(count));
    next += static_cast<std::ptrdiff_t>(count);
  }
  std::vector<at::Tensor> items;
  for (const auto& list : all_lists(core, lists)) items.insert(items.end(), list.begin(), list.end());
  if (items.empty())
    throw_not_reducible(operation, "give map at least one item", "the results of map over no items cannot be reduced");
  at::Tensor sum = items[0].clone();
  if (aggregation == Aggregation::OnlyFirstReplica) return sum;
  for (std::size_t i = 1; i < items.size(); ++i) {
    if (items[i].sizes() != sum.sizes())  // LibTorch would broadcast
      throw InvalidArgument(errors::kShape, {.what = "the results of map must have equal shapes to be reduced",
                                             .where = operation,
                                             .seen = lockstep::str("shapes ", sum.sizes(), " and ", items[i].sizes()),
                                             .help = "let the function given to map return values of one shape"});
    sum = sum.add(items[i]);
  }
  return aggregation == Aggregation::Mean ? sum.div(static_cast<std::int64_t>(items.size())) : sum;
}

}  // namespace

at::Tensor aggregate(Strategy& core, VariableAggregation aggregation, const TowerValue& value, const char* operation) {
  require_aggregation(aggregation, operation);
  switch (value.kind()) {
    case TowerValue::Kind::Mirrored:
      throw_not_reducible(operation, "use the value as it is, or reduce what run returned",
                          "a Mirrored value cannot be reduced: it is one value, not one per replica");
    case TowerValue::Kind::Plain: {
      const at::Tensor& plain = value.values().at(0);
      // Nothing, once per tower, is nothing.
      const bool is_zero = plain.defined() && plain.dim() == 0 && plain.item().toDouble() == 0;
      if (aggregation == Aggregation::Sum && core.num_replicas_in_sync() > 1 && !is_zero) {
        throw_not_reducible(operation, "reduce what run returned, or use MEAN for a value that all replicas share",
                            "a value that is not distributed cannot be reduced with SUM over ",
                            core.num_replicas_in_sync(), " replicas");
      }
      return plain.clone();
    }
    case TowerValue::Kind::MapOutput: return of_map_outputs(core, aggregation, value, operation);
    case TowerValue::Kind::PerDevice: break;
  }
  return of_each_tower(core, aggregation, PerReplica<at::Tensor>(value.local_values()));
}

IndexedSlices aggregate(Strategy& core, VariableAggregation aggregation, const PerReplica<IndexedSlices>& value,
                        const char* operation) {
  require_aggregation(aggregation, operation);
  return of_each_tower(core, aggregation, value);
}

}  // namespace detail
}  // namespace lockstep::contrib
