#include "lockstep/data/user_call.h"

#include <c10/util/Exception.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {

void rethrow_with_stage(const std::string& stage) {
  try {
    throw;
  } catch (Error& error) {
    error.add_where(str("in ", stage));
    throw;
  } catch (c10::Error& error) {
    error.add_context(str("in the dataset's ", stage));
    throw;
  }
}

}  // namespace lockstep::data
