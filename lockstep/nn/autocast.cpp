#include "lockstep/nn/autocast.h"

#include <ATen/autocast_mode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

Autocast::Autocast(at::ScalarType dtype, at::DeviceType device)
    : device_(device),
      outer_dtype_(at::autocast::get_autocast_dtype(device)),
      outer_enabled_(at::autocast::is_autocast_enabled(device)) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw InvalidArgument(errors::kDtype,
                          {.what = str("autocast needs a 16-bit floating type, got ", c10::toString(dtype)),
                           .where = "Autocast",
                           .help = "use torch::kBFloat16 or torch::kHalf"});
  }
  at::autocast::increment_nesting();
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_enabled(device, true);
}

Autocast::~Autocast() {
  at::autocast::set_autocast_enabled(device_, outer_enabled_);
  at::autocast::set_autocast_dtype(device_, outer_dtype_);
  if (at::autocast::decrement_nesting() == 0) detail::forget_cast_weights();
}

void detail::forget_cast_weights() { at::autocast::clear_cache(); }

}  // namespace lockstep
