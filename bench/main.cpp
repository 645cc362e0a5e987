#include <benchmark/benchmark.h>

#include "core_bench.h"
#include "lockstep/base/logging.h"
#include "report.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  lockstep::set_log_severity(lockstep::Severity::Warning);
  lockstep::bench::Report report(lockstep::bench::register_core_benchmarks());
  benchmark::RunSpecifiedBenchmarks(&report);
  benchmark::Shutdown();
}
