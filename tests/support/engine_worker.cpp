// A worker of the process tests: lockstep_engine_worker SCENARIO RANK WORKERS REPLICAS FOLDER LIBRARY
//
// Writes its result into FOLDER/result.RANK.

#include <sys/prctl.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "tests/support/folder_store.h"

namespace {

using namespace lockstep;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Floats of mixed sizes, a function of only the replica's id.
std::vector<float> values_of(int id, std::size_t elements) {
  std::mt19937 generator(static_cast<unsigned>(id));
  std::vector<float> values(elements);
  for (float& value : values)
    value = std::ldexp(static_cast<float>(generator() % 2001) - 1000.0F, static_cast<int>(generator() % 20) - 10);
  return values;
}

std::string digest_of_sums(Engine& engine, int rank, int replicas) {
  std::uint64_t digest = 0;
  for (const std::size_t elements : {3U, 1001U, 500001U}) {
    std::vector<std::vector<float>> values;
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    for (int k = 0; k < replicas; ++k) values.push_back(values_of(rank * replicas + k, elements));
    for (auto& each : values) {
      inputs.push_back(each.data());
      outputs.push_back(each.data());
    }
    engine.run(0, {.kind = CollectiveKind::AllReduce,
                   .elements = elements,
                   .inputs = inputs,
                   .outputs = outputs,
                   .reduce = ReduceOp::Mean,
                   .name = "gradients"});
    for (const auto& each : values)
      if (std::memcmp(each.data(), values[0].data(), elements * sizeof(float)) != 0) return "replicas differ";
    for (const float value : values[0]) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      digest = digest * 1099511628211U + bits;
    }
  }
  return str(digest);
}

std::string reduce_until_error(Engine& engine, const EngineStore& store, int rank) {
  std::vector<float> data(std::size_t{8} << 20, 1.0F);
  const void* const input = data.data();
  void* const output = data.data();
  for (int k = 0;; ++k) {
    try {
      engine.run(1, {.kind = CollectiveKind::AllReduce,
                     .elements = data.size(),
                     .inputs = {input},
                     .outputs = {output},
                     .name = "bucket 3"});
    } catch (const Error& error) {
      char time[40];
      std::snprintf(time, sizeof time, "%.6f", now());
      return str(time, "\n", error.number(), "\n", error.text().what, "\n", error.text().where, "\n",
                 engine.log().size() > 0 ? "logged" : "");
    }
    if (k == 2) store.set(str("running.", rank), "yes");
  }
}

}  // namespace

int main(int, char** arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string scenario = arguments[1];
  EngineOptions options;
  options.rank = std::atoi(arguments[2]);
  options.workers = std::atoi(arguments[3]);
  options.replicas = std::atoi(arguments[4]);
  options.store = engine::folder_store(arguments[5]);
  options.library = arguments[6];
  options.ring = scenario == "digest next to the ring";
  options.connect = Deadline::after(std::chrono::seconds(60));
  options.call_seconds = 60;
#ifdef LOCKSTEP_SANITIZED
  options.linked = lockstep_engine_entry();
#endif
  std::string result;
  try {
    Engine engine(options);
    result = scenario == "reduce" ? reduce_until_error(engine, options.store, options.rank)
                                  : digest_of_sums(engine, options.rank, options.replicas);
  } catch (const Error& error) {
    result = error.what();
  }
  options.store.set(str("result.", options.rank), result);
  return 0;
}
