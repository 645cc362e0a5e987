#include "tests/support/nest.h"

#include <algorithm>
#include <ostream>

#include "lockstep/base/error.h"
#include "lockstep/values/distributed_values.h"
#include "lockstep/values/select.h"

namespace lockstep {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

/// "a, b": every item of a printed value.
std::string join_all(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : ", ") + part;
  return joined;
}

/// The brackets and keys of a container around its items' texts, which `join` puts in a row.
template <class Join>
std::string bracketed(const Nest::Container& container, const char* quote, std::vector<std::string> parts,
                      Join&& join) {
  for (std::size_t i = 0; i < container.keys.size(); ++i) {
    const bool dict = container.kind == Nest::Kind::Dict;
    parts[i] = dict ? str(quote, container.keys[i], quote, ": ", parts[i]) : str(container.keys[i], '=', parts[i]);
  }
  const std::string inside = join(parts);
  switch (container.kind) {
    case Nest::Kind::List: return str('[', inside, ']');
    case Nest::Kind::Tuple: return str('(', inside, parts.size() == 1 ? ",)" : ")");
    case Nest::Kind::Dict: return str('{', inside, '}');
    case Nest::Kind::NamedTuple: return str(container.type, '(', inside, ')');
  }
  return inside;
}

template <class Write>
std::vector<std::string> texts(const std::vector<Nest>& items, Write&& write) {
  std::vector<std::string> written;
  written.reserve(items.size());
  for (const Nest& item : items) written.push_back(write(item));
  return written;
}

const char* name_of(const Nest::Components& components) { return components.mirrored ? "Mirrored" : "PerReplica"; }

Nest components(bool mirrored, std::vector<Nest> items) { return Nest::Components{mirrored, std::move(items)}; }

}  // namespace

Nest Nest::list(std::vector<Nest> items) { return Container{Kind::List, "", {}, std::move(items)}; }
Nest Nest::tuple(std::vector<Nest> items) { return Container{Kind::Tuple, "", {}, std::move(items)}; }
Nest Nest::per_replica(std::vector<Nest> items) { return components(/*mirrored=*/false, std::move(items)); }
Nest Nest::mirrored(std::vector<Nest> items) { return components(/*mirrored=*/true, std::move(items)); }

Nest Nest::dict(std::map<std::string, Nest> entries) {
  Container container{Kind::Dict, "", {}, {}};
  for (auto& [key, value] : entries) {
    container.keys.push_back(key);
    container.items.push_back(std::move(value));
  }
  return container;
}

Nest Nest::named_tuple(std::string type, std::vector<std::pair<std::string, Nest>> fields) {
  Container container{Kind::NamedTuple, std::move(type), {}, {}};
  for (auto& [name, value] : fields) {
    container.keys.push_back(std::move(name));
    container.items.push_back(std::move(value));
  }
  return container;
}

Nest Nest::object(std::string label, std::shared_ptr<const void> identity) {
  if (!identity) identity = std::make_shared<int>();
  return Object{std::move(label), std::move(identity)};
}

const std::vector<Nest>& Nest::items() const {
  static const auto& kNothing = *new std::vector<Nest>;  // never destroyed, to avoid problems of destruction order
  if (const auto* container = std::get_if<Container>(&value_)) return container->items;
  if (const auto* components = std::get_if<Components>(&value_)) return components->items;
  return kNothing;
}

const Nest& Nest::operator[](std::size_t index) const {
  if (index >= size())
    throw InvalidArgument(errors::kStructure, {.what = str("there is no item ", index, " in ", structure_string(*this)),
                                               .help = "check size() or structure_string() first"});
  return items()[index];
}

const Nest& Nest::operator[](const std::string& key) const {
  const Container& container = as<Container>();
  const auto found = std::find(container.keys.begin(), container.keys.end(), key);
  if (found == container.keys.end())
    throw InvalidArgument(errors::kStructure, {.what = str("there is no item '", key, "' in ", structure_string(*this)),
                                               .help = "call structure_string() for the keys that exist"});
  return container.items[static_cast<std::size_t>(found - container.keys.begin())];
}

void Nest::throw_other_kind(const std::string& wanted) const {
  throw InvalidArgument(errors::kStructure, {.what = str(structure_string(*this), " is not a ", wanted),
                                             .help = "check with is<T>() before you call as<T>()"});
}

std::ostream& operator<<(std::ostream& out, const Nest& nest) {
  nest.visit(Overloaded{
      [&](Nest::None) { out << "None"; },
      [&](const Nest::Object& object) { out << '<' << object.label << '>'; },
      [&](const Nest::Variable& variable) { out << variable.name; },
      [&](const Nest::Container& container) {
        out << bracketed(container, "'", texts(container.items, str<Nest>), join_all);
      },
      [&](const Nest::Components& components) {
        out << name_of(components) << '(' << join_all(texts(components.items, str<Nest>)) << ')';
      },
      [&](const auto& leaf) { write_value(out, leaf); },
  });
  return out;
}

bool same_object(const Nest& a, const Nest& b) {
  return a.visit([&b](const auto& x) {
    using T = std::remove_cvref_t<decltype(x)>;
    if (!b.is<T>()) return false;
    [[maybe_unused]] const T& y = b.as<T>();
    if constexpr (std::is_same_v<T, Nest::None>) {
      return true;
    } else if constexpr (std::is_same_v<T, at::Tensor>) {
      return x.is_same(y);
    } else if constexpr (std::is_same_v<T, IndexedSlices>) {
      return x.values.is_same(y.values) && x.indices.is_same(y.indices) && x.dense_shape == y.dense_shape;
    } else if constexpr (std::is_same_v<T, Nest::Object>) {
      return x.identity == y.identity;
    } else if constexpr (std::is_same_v<T, Nest::Components>) {
      return x.mirrored == y.mirrored &&
             std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), same_object);
    } else if constexpr (std::is_same_v<T, Nest::Container>) {
      return false;
    } else {
      return x == y;
    }
  });
}

std::string StructureTraits<Nest>::describe(const Nest& nest) {
  return nest.visit(Overloaded{
      [](Nest::None) -> std::string { return "none"; },
      [](int64_t) -> std::string { return "int"; },
      [](double) -> std::string { return "float"; },
      [](const Nest::Object& object) -> std::string { return object.label; },
      [](const Nest::Variable&) -> std::string { return "variable"; },
      // Dense and sparse gradients of one parameter may meet in a reduction.
      [](const IndexedSlices&) { return type_name<at::Tensor>(); },
      [](const Nest::Container& container) {
        return bracketed(container, "", texts(container.items, describe), detail::join_parts);
      },
      [](const Nest::Components& components) {
        return str(name_of(components), '(', detail::join_parts(texts(components.items, describe)), ')');
      },
      [](const auto& leaf) { return type_name<std::remove_cvref_t<decltype(leaf)>>(); },
  });
}

bool StructureTraits<Nest>::same_structure(const Nest& a, const Nest& b) {
  if (a.is_container() != b.is_container()) return false;
  if (!a.is_container()) return true;
  const auto& x = a.as<Nest::Container>();
  const auto& y = b.as<Nest::Container>();
  return x.kind == y.kind && x.type == y.type && x.keys == y.keys &&
         std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), &same_structure);
}

Nest StructureTraits<Nest>::select(const Nest& nest, int k) {
  const auto index = static_cast<std::size_t>(k);
  if (nest.is_distributed()) {
    const auto& components = nest.as<Nest::Components>();
    if (index >= components.items.size())
      detail::throw_component_out_of_range(name_of(components), index, components.items.size());
    return components.items[index];
  }
  if (!nest.is_container()) return nest;
  Nest selected = nest;
  for (Nest& item : selected.as<Nest::Container>().items) item = select(item, k);
  return selected;
}

std::vector<Nest> StructureTraits<Nest>::local_results(const Nest& nest, int replicas) {
  if (nest.is_distributed()) return nest.items();
  if (nest.is<Nest::Variable>()) {
    const auto& variable = nest.as<Nest::Variable>();
    std::vector<Nest> parts;
    for (std::size_t k = 0; k < variable.component_names.size(); ++k) parts.emplace_back(variable.component(k));
    if (!parts.empty()) return parts;
  }
  if (!nest.is_container()) return {nest};
  std::vector<Nest> results;
  for (int k = 0; k < replicas; ++k) results.push_back(select(nest, k));
  return results;
}

Nest unflatten_reducible(const Nest& like, std::vector<ReducibleLeaf> leaves, detail::LeafPurpose purpose) {
  std::size_t next = 0;
  auto replace = [&](const auto& leaf) -> Nest {
    using T = std::remove_cvref_t<decltype(leaf)>;
    if (next == leaves.size()) return leaf;
    ReducibleLeaf& reduced = leaves[next++];
    if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, IndexedSlices>) {
      return std::visit([](auto& value) { return Nest(std::move(value)); }, reduced);
    } else {
      T number = leaf;
      detail::from_reducible(std::move(reduced), number, Path(), purpose);
      return number;
    }
  };
  const std::size_t given = leaves.size();
  Nest result = StructureTraits<Nest>::map(replace, like);
  detail::check_leaf_count(next, given);
  return result;
}

}  // namespace lockstep
