// A worker of golden_cluster_test: `golden_worker JOB RESULTS`, started by `lockstep run`. JOB is a file:
//
//   {"cluster": {"chief": 1, "worker": 2}, "replicas": 2, "strategies": 1, "cases": [...]}
//
// The worker makes that many strategies in turn and runs all cases with each. The outcomes on this worker go to the
// folder RESULTS, a line for each as soon as it is known. An error inside of replicas ends a job: the worker then
// leaves the remaining cases to the next one.

#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/cluster.h"
#include "tests/golden_cluster/worker_cases.h"

namespace lockstep::golden_cluster {
namespace {

using golden::json;

/// The launcher's workers, the first of them as the chief if the job has one.
std::shared_ptr<const ClusterResolver> resolver_for(const json& cluster) {
  const TFConfigClusterResolver launched;
  if (!cluster.contains("chief")) return std::make_shared<TFConfigClusterResolver>();
  const ClusterSpec workers = launched.cluster_spec();
  std::vector<std::string> addresses;
  for (const auto& [index, address] : workers.tasks("worker")) addresses.push_back(address);
  std::map<std::string, std::vector<std::string>> jobs = {{"chief", {addresses.front()}}};
  addresses.erase(addresses.begin());
  if (!addresses.empty()) jobs["worker"] = addresses;
  const auto id = launched.task_id().value();
  return std::make_shared<SimpleClusterResolver>(
      ClusterSpec(jobs),
      SimpleClusterOptions{.task_type = id == 0 ? "chief" : "worker", .task_id = id == 0 ? 0 : id - 1});
}

json outcome_of_case(MultiWorkerMirroredStrategy& strategy, const golden::Case& given) {
  try {
    return run_as_worker(strategy, given);
  } catch (const std::exception& error) {
    return {{"unknown_form", error.what()}};
  }
}

bool goes_on(MultiWorkerMirroredStrategy& strategy) {
  try {
    strategy.barrier();
    return true;
  } catch (const Error&) {
    return false;
  }
}

void run_job(const json& job, const std::string& folder) {
  const auto resolver = resolver_for(job["cluster"]);
  std::ofstream results;
  for (int i = 0; i < job["strategies"].get<int>(); ++i) {
    MultiWorkerMirroredStrategy strategy({.devices = cpus(job["replicas"].get<int>()),
                                          .cluster_resolver = resolver,
                                          .communication = {.timeout_seconds = 20},
                                          .intra_op_threads = 1,
                                          .seed = 1,
                                          .join_seconds = 60});
    if (i == 0) results.open(folder + "/" + std::to_string(strategy.worker_id()));
    for (const json& data : job["cases"]) {
      const json line = {{"id", data["id"]}, {"outcome", outcome_of_case(strategy, {data})}};
      results << line.dump() << std::endl;
      if (line["outcome"].contains("error") && !goes_on(strategy)) return;
    }
  }
}

}  // namespace
}  // namespace lockstep::golden_cluster

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    std::ifstream file(argv[1]);
    lockstep::golden_cluster::run_job(nlohmann::json::parse(file), argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
