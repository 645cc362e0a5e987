#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "tests/support/nest.h"

namespace lockstep {
namespace {

/// The values at one place of the structure, for each replica.
using Row = std::vector<const Nest*>;

bool is_tuple(Nest::Kind kind) { return kind == Nest::Kind::Tuple || kind == Nest::Kind::NamedTuple; }

const char* name_of(Nest::Kind kind) {
  if (is_tuple(kind)) return "tuples";
  return kind == Nest::Kind::List ? "lists" : "dicts";
}

[[noreturn]] void throw_different(const std::string& what, const Row& row, std::size_t replica, const Path& path) {
  const std::string place = path.string();
  throw InvalidArgument(
      errors::kStructure,
      {.what = what,
       .where = str(place.empty() ? "" : place + " of ", "the results of replicas 0 and ", replica),
       .seen =
           str("replica 0: ", structure_string(*row[0]), "; replica ", replica, ": ", structure_string(*row[replica])),
       .help = "return the same structure from every replica: the same kinds of containers, lengths and keys"});
}

void check_container(const Row& row, std::size_t replica, const Path& path) {
  const auto& first = row[0]->as<Nest::Container>();
  const Nest& nest = *row[replica];
  const auto differs = [&](const std::string& what) { throw_different(what, row, replica, path); };
  if (!nest.is_container()) differs(str("replicas returned different structures: not all are ", name_of(first.kind)));
  const auto& other = nest.as<Nest::Container>();
  if (other.kind != first.kind && !(is_tuple(other.kind) && is_tuple(first.kind)))
    differs(str("replicas returned different structures: ", name_of(first.kind), " and ", name_of(other.kind)));
  if (first.kind == Nest::Kind::Dict && other.keys != first.keys) differs("replicas returned maps with different keys");
  if (other.items.size() != first.items.size()) differs("replicas returned structures of different lengths");
}

/// The distributed variable of which a leaf is a component, if any.
std::optional<Nest::Variable> containing_variable(const Nest& nest) {
  if (!nest.is<Nest::Variable>()) return std::nullopt;
  const Nest::Variable& variable = nest.as<Nest::Variable>();
  if (!variable.is_component()) return std::nullopt;
  return variable.container();
}

/// A variable, and not one component of it.
bool is_whole_variable(const Nest& nest) {
  return nest.is<Nest::Variable>() && !nest.as<Nest::Variable>().is_component();
}

Nest regroup_leaves(const Row& row, bool always_wrap, const Path& path) {
  const Nest& first = *row[0];
  const bool same = std::all_of(row.begin(), row.end(), [&](const Nest* nest) { return same_object(*nest, first); });
  if (same && is_whole_variable(first)) return first;
  if (const auto variable = containing_variable(first)) {
    for (std::size_t k = 1; k < row.size(); ++k)
      if (containing_variable(*row[k]) != variable)
        throw_different("replicas returned components of different variables", row, k, path);
    return *variable;
  }
  if (same && !always_wrap) return first;
  std::vector<Nest> components;
  components.reserve(row.size());
  for (const Nest* nest : row) components.push_back(*nest);
  return Nest::per_replica(std::move(components));
}

Nest regroup_row(const Row& row, bool always_wrap, const Path& path) {
  if (!row[0]->is_container()) return regroup_leaves(row, always_wrap, path);
  for (std::size_t k = 1; k < row.size(); ++k) check_container(row, k, path);
  Nest::Container joined = row[0]->as<Nest::Container>();
  for (std::size_t i = 0; i < joined.items.size(); ++i) {
    Row items;
    items.reserve(row.size());
    for (const Nest* nest : row) items.push_back(&nest->items()[i]);
    const Path place = joined.keys.empty() ? Path(path, i) : Path(path, &joined.keys[i]);
    joined.items[i] = regroup_row(items, always_wrap, place);
  }
  return joined;
}

}  // namespace

Nest regroup(const std::vector<Nest>& per_replica, bool always_wrap) {
  if (per_replica.empty())
    throw InvalidArgument(errors::kStructure, {.what = "there is nothing to regroup: no replica returned a value",
                                               .help = "pass one value per local replica"});
  Row row;
  row.reserve(per_replica.size());
  for (const Nest& nest : per_replica) row.push_back(&nest);
  return regroup_row(row, always_wrap, Path());
}

}  // namespace lockstep
