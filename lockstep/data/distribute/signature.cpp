#include "lockstep/data/distribute/signature.h"

#include "lockstep/data/errors.h"
#include "lockstep/data/format/listed.h"

namespace lockstep {

std::string to_string(const DistributedSpec& spec) {
  const std::string element = to_string(spec.element);
  return spec.per_replica == 0 ? element : str("PerReplica x ", spec.per_replica, " of ", element);
}

namespace data {
namespace {

/// "2 keys: x, y", "3 elements": the lengths and keys of the maps and vectors of a structure.
std::string in_words(const SkeletonPtr& skeleton) {
  std::vector<std::string> keys, lengths;
  if (skeleton) {
    for (const auto& mark : skeleton->marks) {
      if (const auto* key = std::get_if<std::string>(&mark))
        keys.push_back(*key);
      else
        lengths.push_back(std::to_string(std::get<std::int64_t>(mark)));
    }
  }
  if (!keys.empty()) return str("keys ", listed(keys));
  return lengths.empty() ? "no keys" : str("lengths ", listed(lengths));
}

}  // namespace

void check_signature_width(const DistributedSpec& signature, int replicas) {
  if (signature.per_replica == 0 || signature.per_replica == replicas) return;
  throw InvalidArgument(errors::kSignature,
                        {.what = str("the signature is for ", counted(signature.per_replica, "replica"), ", but there ",
                                     replicas == 1 ? "is " : "are ", replicas),
                         .where = "run",
                         .seen = to_string(signature),
                         .help = "use the element_spec() of a dataset that this strategy has distributed"});
}

void check_signature(const DistributedSpec& signature, const std::vector<Element>& arguments, int replica,
                     FunctionRef<std::vector<std::string>()> names) {
  const ElementSpec& wanted = signature.element;
  if (!wanted.components) return;
  std::vector<ComponentSpec> leaves;
  SkeletonPtr skeleton;
  for (const Element& argument : arguments) {
    for (const Component& component : argument.components) leaves.push_back(ComponentSpec::of(component));
    skeleton = joined(skeleton, argument.skeleton);
  }
  const auto fail = [&](std::string what, std::string seen, const char* help) {
    throw InvalidArgument(
        errors::kSignature,
        {.what = std::move(what), .where = str("run, on replica ", replica), .seen = std::move(seen), .help = help});
  };
  if (leaves.size() != wanted.components->size()) {
    std::vector<std::string> got = names();
    for (std::size_t i = 0; i < leaves.size(); ++i) got.at(i) = str(got.at(i), " ", to_string(leaves[i]));
    fail(str("the arguments of run have ", counted(std::ssize(leaves), "part"), ", the signature has ",
             wanted.components->size()),
         str("got ", listed(got), "; wanted ", to_string(wanted)),
         "give run the values of the dataset and nothing else; let the function capture whatever else it needs");
  }
  if (wanted.skeleton && !(skeleton && *skeleton == *wanted.skeleton))
    fail("the arguments of run have other keys or lengths than the signature",
         str("got ", in_words(skeleton), "; wanted ", in_words(wanted.skeleton)),
         "use the element_spec() of the dataset that the arguments come from");
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const ComponentSpec &got = leaves[i], &leaf = (*wanted.components)[i];
    const bool kind_fits = leaf.kind == ComponentSpec::Kind::Unknown || leaf.kind == got.kind;
    const bool type_fits = kind_fits && (!leaf.dtype || leaf.dtype == got.dtype);
    if (type_fits && leaf.shape.accepts(got.shape.dims())) continue;
    fail(str(names().at(i), type_fits ? " has another shape than" : " is of another type than", " the signature"),
         str("got ", to_string(got), ", wanted ", to_string(leaf)),
         type_fits ? "use the element_spec() of the dataset that it comes from; optional_spec() of an iterator leaves "
                     "the number of rows open"
                   : "use the element_spec() of the dataset that it comes from, or convert it with .to(...) in a map");
  }
}

}  // namespace data
}  // namespace lockstep
