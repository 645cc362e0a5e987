#include "lockstep/data/distribute/signature.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

std::string to_string(const DistributedSpec& spec) {
  const std::string element = to_string(spec.element);
  return spec.per_replica == 0 ? element : str("PerReplica x ", spec.per_replica, " of ", element);
}

namespace data {
namespace {

std::string joined_with_commas(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += str(text.empty() ? "" : ", ", part);
  return text;
}

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
  if (!keys.empty()) return str("keys ", joined_with_commas(keys));
  return lengths.empty() ? "no keys" : str("lengths ", joined_with_commas(lengths));
}

class SignatureCheck {
 public:
  SignatureCheck(int replica, FunctionRef<std::vector<std::string>()> names) : replica_(replica), names_(names) {}

  void leaf_count(const std::vector<ComponentSpec>& leaves, const ElementSpec& wanted) const {
    if (leaves.size() == wanted.components->size()) return;
    const std::vector<std::string> names = names_();
    std::vector<std::string> got;
    for (std::size_t i = 0; i < leaves.size(); ++i) got.push_back(str(names.at(i), " ", to_string(leaves[i])));
    fail(str("the arguments of run have ", counted(std::ssize(leaves), "part"), ", the signature has ",
             wanted.components->size()),
         str("got ", joined_with_commas(got), "; wanted ", to_string(wanted)),
         "give run the values of the dataset and nothing else; let the function capture whatever else it needs");
  }

  void structure(const SkeletonPtr& got, const SkeletonPtr& wanted) const {
    if (!wanted || (got && *got == *wanted)) return;
    fail("the arguments of run have other keys or lengths than the signature",
         str("got ", in_words(got), "; wanted ", in_words(wanted)),
         "use the element_spec() of the dataset that the arguments come from");
  }

  void leaf(std::size_t i, const ComponentSpec& got, const ComponentSpec& wanted) const {
    const bool kind_fits = wanted.kind == ComponentSpec::Kind::Unknown || wanted.kind == got.kind;
    const bool type_fits = kind_fits && (!wanted.dtype || wanted.dtype == got.dtype);
    if (type_fits && wanted.shape.accepts(got.shape.dims())) return;
    fail(str(names_().at(i), type_fits ? " has another shape than" : " is of another type than", " the signature"),
         str("got ", to_string(got), ", wanted ", to_string(wanted)),
         type_fits ? "use the element_spec() of the dataset that it comes from; optional_spec() of an iterator leaves "
                     "the number of rows open"
                   : "use the element_spec() of the dataset that it comes from, or convert it with .to(...) in a map");
  }

 private:
  [[noreturn]] void fail(std::string what, std::string seen, std::string help) const {
    throw InvalidArgument(errors::kSignature, {.what = std::move(what),
                                               .where = str("run, on replica ", replica_),
                                               .seen = std::move(seen),
                                               .help = std::move(help)});
  }

  int replica_;
  FunctionRef<std::vector<std::string>()> names_;
};

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
  if (!signature.element.components) return;
  std::vector<ComponentSpec> leaves;
  SkeletonPtr skeleton;
  for (const Element& argument : arguments) {
    for (const Component& component : argument.components) leaves.push_back(ComponentSpec::of(component));
    skeleton = joined(skeleton, argument.skeleton);
  }
  const SignatureCheck check(replica, names);
  check.leaf_count(leaves, signature.element);
  check.structure(skeleton, signature.element.skeleton);
  for (std::size_t i = 0; i < leaves.size(); ++i) check.leaf(i, leaves[i], (*signature.element.components)[i]);
}

}  // namespace data
}  // namespace lockstep
