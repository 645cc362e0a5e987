// The speed of the data engine between processes of this machine, against Gloo's own ring in the same run:
//
//   lockstep_engine_bench [workers] [rounds] [chunk KB]
//
// The bandwidth counts the bytes of the array, as all-reduce benchmarks do. The last lines are the cost of comparing
// fingerprints, and a program that computes while the engine works, as backward does.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/folder_store.h"
#include "tests/support/temporary_folder.h"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// The time of a computation by itself, and while the engine reduces an array that the program does not wait for yet.
void overlap(Engine& engine, int rank, int rounds, std::vector<float>& data) {
  const void* const input = data.data();
  void* const output = data.data();
  const auto compute = [] {
    const auto begin = Clock::now();
    volatile double sum = 0;
    for (int k = 0; k < 10'000'000; ++k) sum = sum * 0.5 + k;
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  std::vector<double> alone;
  std::vector<double> beside;
  std::vector<double> all;
  for (int round = 0; round < rounds; ++round) {
    engine.run(0, {.kind = CollectiveKind::Barrier});
    alone.push_back(compute());
    engine.run(0, {.kind = CollectiveKind::Barrier});
    const auto begin = Clock::now();
    const auto ticket = engine.submit(1, {.kind = CollectiveKind::AllReduce,
                                          .elements = data.size(),
                                          .inputs = {input},
                                          .outputs = {output},
                                          .name = "bench"});
    beside.push_back(compute());
    engine.wait(ticket);
    all.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  if (rank == 0)
    std::printf("computing %.1f ms by itself, %.1f ms during %zu MB; both done after %.1f ms\n", 1e3 * median(alone),
                1e3 * median(beside), data.size() >> 18, 1e3 * median(all));
}

// A barrier is a collective without data: only the comparison of fingerprints remains.
void fingerprints(Engine& engine, int rank, int rounds) {
  constexpr int kCalls = 300;
  std::vector<double> each;
  double cpu = 0;
  for (int round = -1; round < rounds; ++round) {
    const double before = cpu_seconds();
    const auto begin = Clock::now();
    for (int k = 0; k < kCalls; ++k) engine.run(0, {.kind = CollectiveKind::Barrier});
    if (round < 0) continue;
    each.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / kCalls);
    cpu += (cpu_seconds() - before) / kCalls;
  }
  if (rank == 0)
    std::printf("only the fingerprints of a collective: %.1f us, CPU %.1f us\n", 1e6 * median(each),
                1e6 * cpu / rounds);
}

int work(int rank, int workers, int rounds, const std::string& folder, std::size_t chunk) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  EngineOptions options;
  options.rank = rank;
  options.workers = workers;
  options.store = engine::folder_store(folder);
  options.connect = Deadline::after(std::chrono::seconds(30));
  options.ring = true;
  options.library = LOCKSTEP_ENGINE_FILE;
  if (chunk > 0) options.chunk_bytes = chunk;
  Engine engine(options);
  std::vector<float> data(16 << 20, 1.0F);
  const void* const input = data.data();
  void* const output = data.data();
  const auto reduce = [&](std::size_t bytes, Implementation by) {
    engine.run(0, {.kind = CollectiveKind::AllReduce,
                   .elements = bytes / sizeof(float),
                   .inputs = {input},
                   .outputs = {output},
                   .name = "bench",
                   .implementation = by});
  };
  const auto seconds = [&](std::size_t bytes, Implementation by, int calls) {
    engine.run(0, {.kind = CollectiveKind::Barrier});
    const auto begin = Clock::now();
    for (int k = 0; k < calls; ++k) reduce(bytes, by);
    return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
  };
  std::printf(rank == 0 ? "%-10s %12s %12s %8s %14s\n" : "", "bytes", "lockstep", "gloo ring", "ratio", "CPU/call");
  for (const std::size_t bytes :
       {std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{64} << 20}) {
    const int calls = bytes >= (16 << 20) ? 3 : bytes >= (1 << 20) ? 30 : 300;
    std::vector<double> own;
    std::vector<double> ring;
    std::vector<double> ratio;
    double cpu = 0;
    for (int round = -1; round < rounds; ++round) {
      double a = 0;
      double b = 0;
      const auto first = [&] {
        const double before = cpu_seconds();
        a = seconds(bytes, Implementation::Auto, calls);
        if (round >= 0) cpu += cpu_seconds() - before;
      };
      const auto second = [&] { b = seconds(bytes, Implementation::Ring, calls); };
      if (round % 2 == 0) {
        first();
        second();
      } else {
        second();
        first();
      }
      if (round < 0) continue;
      own.push_back(a);
      ring.push_back(b);
      ratio.push_back(b / a);
    }
    if (rank != 0) continue;
    if (bytes < (1 << 20)) {
      std::printf("%-10zu %9.1f us %9.1f us %7.2fx %11.1f us\n", bytes, 1e6 * median(own), 1e6 * median(ring),
                  median(ratio), 1e6 * cpu / rounds / calls);
    } else {
      const double size = static_cast<double>(bytes) * 1e-9;
      std::printf("%-10zu %7.2f GB/s %7.2f GB/s %7.2fx %11.2f ms\n", bytes, size / median(own), size / median(ring),
                  median(ratio), 1e3 * cpu / rounds / calls);
    }
    std::fflush(stdout);
  }
  fingerprints(engine, rank, rounds);
  overlap(engine, rank, rounds, data);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int k, const char* otherwise) { return std::string(argc > k ? argv[k] : otherwise); };
  if (argument(1, "") == "work")
    return work(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), argv[5],
                static_cast<std::size_t>(std::atoi(argv[6])) << 10);
  const std::string workers = argument(1, "2");
  const TemporaryFolder folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < std::atoi(workers.c_str()); ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/proc/self/exe", argv[0], "work", std::to_string(rank).c_str(), workers.c_str(),
              argument(2, "9").c_str(), folder.path().c_str(), argument(3, "0").c_str(), nullptr);
      ::_exit(127);
    }
    children.push_back(child);
  }
  int result = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) result = 1;
  }
  return result;
}
