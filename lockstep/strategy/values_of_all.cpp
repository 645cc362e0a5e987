#include "lockstep/strategy/values_of_all.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::detail {
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
  const auto* const shape = static_cast<const std::int64_t*>(next[2].const_data_ptr());
  rows.dense_shape.assign(shape, shape + next[2].numel());
  next += 3;
  return rows;
}

/// Of the texts of all replicas, which begin with the number of values.
void require_one_structure(const std::vector<std::string>& texts, std::size_t replicas_per_worker,
                           const std::string& of_none) {
  std::set<std::string> structures;
  for (const std::string& text : texts) {
    std::istringstream lines(text.substr(text.find('\n') + 1));
    for (std::string line; std::getline(lines, line);) structures.insert(line);
  }
  for (std::size_t first = 0; first < texts.size(); first += replicas_per_worker) {
    const auto has_none = [](const std::string& text) { return text.starts_with("0\n"); };
    const auto its = texts.begin() + static_cast<std::ptrdiff_t>(first);
    if (std::all_of(its, its + static_cast<std::ptrdiff_t>(replicas_per_worker), has_none)) structures.insert(of_none);
  }
  if (structures.size() < 2) return;
  std::string seen;
  for (const std::string& structure : structures) seen += str(seen.empty() ? "" : " and ", structure);
  throw InvalidArgument(
      errors::kStructure,
      {.what = "the values of replicas on several workers must have one structure",
       .seen = std::move(seen),
       .help = "give the same structure on every replica, with an empty tensor where one lacks something"});
}

}  // namespace

std::vector<at::Tensor> of_all_replicas(const Strategy& strategy, const std::vector<at::Tensor>& mine) {
  WorkerGroup* workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return mine;
  return workers::all_gather(*workers, mine, "values of replicas", deadline_of(strategy.communication()));
}

std::vector<std::string> of_all_replicas(const Strategy& strategy, const std::vector<std::string>& mine) {
  WorkerGroup* workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return mine;
  std::vector<std::string> all;
  for (const auto& texts :
       workers::all_gather_texts(*workers, mine, "texts of replicas", deadline_of(strategy.communication())))
    all.insert(all.end(), texts.begin(), texts.end());
  return all;
}

std::vector<std::vector<std::string>> lists_of_all_replicas(const Strategy& strategy,
                                                            const std::vector<std::vector<std::string>>& mine) {
  WorkerGroup* workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return mine;
  workers::Texts texts;  // the number of each list, and its texts
  for (const auto& list : mine) {
    texts.push_back(str(list.size()));
    texts.insert(texts.end(), list.begin(), list.end());
  }
  std::vector<std::vector<std::string>> all;
  for (const auto& theirs :
       workers::all_gather_texts(*workers, texts, "lists of texts", deadline_of(strategy.communication()))) {
    for (auto next = theirs.begin(); next != theirs.end();) {
      const auto begin = next + 1;
      next = begin + std::stol(*next);
      all.emplace_back(begin, next);
    }
  }
  return all;
}

void require_one_for_each(const Strategy& strategy, std::size_t values, const char* operation) {
  const int replicas = strategy.num_local_replicas();
  if (static_cast<int>(values) == replicas) return;
  throw InvalidArgument(errors::kComponent,
                        {.what = str(operation, " takes a value for each local replica"),
                         .seen = str(counted(values, "value"), " for ", counted(replicas, "local replica")),
                         .help = "give it what run returned, or what values_from_function made"});
}

std::vector<std::size_t> order_of(const Placement& placement, const Devices& of_all_replicas) {
  std::vector<std::tuple<std::ptrdiff_t, std::string, std::size_t>> places;
  for (std::size_t k = 0; k < placement.devices.size(); ++k) {
    const auto replica = std::find(of_all_replicas.begin(), of_all_replicas.end(), placement.devices[k]);
    places.emplace_back(replica - of_all_replicas.begin(), placement.devices[k], k);
  }
  std::sort(places.begin(), places.end());
  std::vector<std::size_t> order;
  for (const auto& place : places) order.push_back(std::get<2>(place));
  return order;
}

std::vector<std::vector<Leaves>> leaves_of_all_replicas(const Strategy& strategy,
                                                        const std::vector<std::vector<Leaves>>& mine,
                                                        const std::vector<std::set<std::string>>& structures,
                                                        const Leaves& like, const std::string& of_none) {
  std::vector<std::string> texts;
  for (std::size_t k = 0; k < mine.size(); ++k) {
    texts.push_back(str(mine[k].size(), '\n'));
    for (const std::string& structure : structures[k]) texts.back() += structure + '\n';
  }
  texts = of_all_replicas(strategy, texts);
  require_one_structure(texts, mine.size(), of_none);
  std::vector<std::size_t> counts;
  for (const std::string& text : texts) counts.push_back(std::strtoul(text.c_str(), nullptr, 10));

  // Every replica sends as many tensors as the one with the most values.
  std::vector<at::Tensor> of_one;
  for (const ReducibleLeaf& leaf : like) append_tensors(leaf, of_one);
  const std::size_t each = *std::max_element(counts.begin(), counts.end()) * of_one.size();
  std::vector<at::Tensor> tensors;
  for (std::size_t k = 0; k < mine.size(); ++k) {
    for (const Leaves& value : mine[k])
      for (const ReducibleLeaf& leaf : value) append_tensors(leaf, tensors);
    tensors.resize((k + 1) * each, at::empty({0}));
  }
  tensors = of_all_replicas(strategy, tensors);
  std::vector<std::vector<Leaves>> all(counts.size());
  for (std::size_t replica = 0; replica < counts.size(); ++replica) {
    auto next = tensors.cbegin() + static_cast<std::ptrdiff_t>(replica * each);
    for (all[replica].resize(counts[replica]); Leaves & value : all[replica])
      for (const ReducibleLeaf& leaf : like) value.push_back(take_leaf(leaf, next));
  }
  return all;
}

}  // namespace lockstep::detail
