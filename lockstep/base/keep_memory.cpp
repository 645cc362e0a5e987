#include "lockstep/base/keep_memory.h"

#include <malloc.h>

#include <climits>
#include <mutex>

#include "lockstep/base/logging.h"

namespace lockstep {

void keep_freed_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
#if defined(__GLIBC__)
    // The threshold for mapping cannot exceed 32 MB, so mapping is disabled altogether.
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_TOP_PAD, 64 << 20);
    log(Severity::Debug, "freed memory is kept for the next step (keep_memory = false leaves malloc as it is)");
#endif
  });
}

}  // namespace lockstep
