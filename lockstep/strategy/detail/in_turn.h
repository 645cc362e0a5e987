#pragma once

#include "lockstep/base/export.h"

namespace lockstep::detail {

/// While it lives, the next run of this thread lets its replicas work one after the other if `in_turn`: each up to its next
/// meeting.
class LOCKSTEP_EXPORT InTurn {
 public:
  explicit InTurn(bool in_turn);
  ~InTurn();
  InTurn(const InTurn&) = delete;
  InTurn& operator=(const InTurn&) = delete;
};

}  // namespace lockstep::detail
