#include "lockstep/train/forward.h"

#include <cstddef>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::train {

Forward::Input Forward::input_of(const detail::BatchRefs& batch) const {
  if (!plain_) {
    throw FailedPrecondition(
        errors::kStructure,
        {.what = "the parameters of the network's forward are not known: it is overloaded, or a template",
         .where = "train::Model",
         .help = "name the overload in the model's options: .forward = [net](const Input& input) { return "
                 "net->forward(input); }"});
  }
  const auto& fields = batch.fields;
  const std::size_t wanted = plain_.types().size();
  const detail::AnyRef whole[] = {batch.whole};
  if (plain_.takes(whole)) return {{batch.whole}, fields.size() == 2 ? &fields.back() : nullptr};
  if (wanted <= fields.size()) {
    const detail::AnyRefs first(fields.begin(), fields.begin() + static_cast<std::ptrdiff_t>(wanted));
    if (plain_.takes(first)) return {first, fields.size() == wanted + 1 ? &fields.back() : nullptr};
  }
  if (plain_.takes(batch.parts)) return {batch.parts, fields.size() == 2 ? &fields.back() : nullptr};
  throw InvalidArgument(
      errors::kStructure,
      {.what = lockstep::str("forward takes ", detail::names_of_types(plain_.types()),
                             ", which a batch does not begin with"),
       .where = "train::Model",
       .seen = types_of(batch),
       .help = lockstep::str("map the dataset to pairs of input and target; or give the model .forward = [net](const ",
                             lockstep::type_name(batch.whole.type()), "& mine) { return net->forward(...); }")});
}

}  // namespace lockstep::train
