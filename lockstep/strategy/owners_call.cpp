#include "lockstep/strategy/owners_call.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::detail {
namespace {

thread_local const char* innermost = nullptr;

}  // namespace

OwnersCall::OwnersCall(const char* operation) : outer_(std::exchange(innermost, operation)) {}
OwnersCall::~OwnersCall() { innermost = outer_; }

bool is_in_owners_call() { return innermost != nullptr; }

void require_call_of_all_workers(const char* call) {
  if (innermost == nullptr) return;
  throw FailedPrecondition(errors::kWrongContext,
                           {.what = str(call, " inside the function given to ", innermost,
                                        ", which only the worker that owns the item or component calls"),
                            .where = innermost,
                            .help = str("do it before or after ", innermost, ", and give the function what it needs")});
}

}  // namespace lockstep::detail
