#include "lockstep/data/workers.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>
#include <pthread.h>

namespace lockstep::data {

void prepare_pipeline_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
  at::init_num_threads();
  if (at::get_num_threads() != 1) {
    // at::set_num_threads would also become the default of threads that start later. OpenMP's own call affects only
    // this thread; it is looked up because the OpenMP library that LibTorch uses is not linked by name.
    using SetThreads = void (*)(int);
    if (const auto set_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
      set_threads(1);
    if (at::get_num_threads() != 1) at::set_num_threads(1);
  }
  c10::GradMode::set_enabled(false);
}

}  // namespace lockstep::data
