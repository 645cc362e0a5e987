// usage: lockstep_data_bench [rows] [rounds] [part of a name, such as lockstep/mapped]
// One JSON line per round and pipeline: the best of three passes, as the peers measure it.

#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "pipelines.h"

namespace {

double best_rate(const lockstep::bench::Pipeline& pipeline, std::int64_t rows) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int pass = 0; pass < 3; ++pass) {
    const auto start = Clock::now();
    if (pipeline.read_all() != rows) {
      std::fprintf(stderr, "%s/%s lost rows\n", pipeline.who.c_str(), pipeline.name.c_str());
      std::exit(1);
    }
    best = std::max(best, static_cast<double>(rows) / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t rows = argc > 1 ? std::atoll(argv[1]) : 60'000;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 1;
  const std::string wanted = argc > 3 ? argv[3] : "";
  const lockstep::bench::Images images{at::rand({rows, 784}), at::randint(0, 10, {rows}, at::kLong)};
  std::string folder = (std::filesystem::temp_directory_path() / "lockstep_data_bench.XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  auto pipelines = lockstep::bench::lockstep_pipelines(images, folder);
  for (auto& peer : lockstep::bench::torch_data_pipelines(images)) pipelines.push_back(std::move(peer));
  for (int round = 0; round < rounds; ++round) {
    for (const auto& pipeline : pipelines) {
      if ((pipeline.who + "/" + pipeline.name).find(wanted) == std::string::npos) continue;
      std::printf("{\"peer\": \"%s\", \"pipeline\": \"%s\", \"rows_per_s\": %.0f}\n", pipeline.who.c_str(),
                  pipeline.name.c_str(), best_rate(pipeline, rows));
      std::fflush(stdout);
    }
  }
  std::filesystem::remove_all(folder);
}
