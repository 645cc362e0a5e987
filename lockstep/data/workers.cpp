#include "lockstep/data/workers.h"

#include "lockstep/data/errors.h"

namespace lockstep::data {

void throw_no_more_threads(int started, int wanted, const std::string& reason) {
  throw ResourceExhausted(errors::kNoThreads,
                          {.what = str("only ", started, " of ", counted(wanted, "thread"), " could be started"),
                           .where = "reading a dataset ahead",
                           .seen = reason,
                           .help = "use fewer parallel_calls and fewer iterators at a time, or allow the process more "
                                   "threads and memory (ulimit -u, ulimit -v)"});
}

}  // namespace lockstep::data
