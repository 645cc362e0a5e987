#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "lockstep/base/text.h"
#include "tests/golden_cluster/cases.h"

#ifdef LOCKSTEP_TEST_WORKER
#include "tests/support/launches.h"
#endif

// The cases of the area multi_worker, run by real processes: those with the same shape of cluster share a job.
namespace lockstep::golden_cluster {

#ifdef LOCKSTEP_TEST_WORKER

namespace {

using Outcomes = std::map<std::string, std::vector<json>>;  // by id, in the order in which a worker wrote them

struct Job {
  std::vector<Outcomes> workers;
  std::string failure;  // its output if it did not end well
};

Outcomes read_outcomes(const std::string& path) {
  Outcomes outcomes;
  std::istringstream lines(file_content(path));
  for (std::string line; std::getline(lines, line);) {
    const json read = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (read.is_object()) outcomes[read["id"]].push_back(read["outcome"]);
  }
  return outcomes;
}

Job run_job(const json& job, int workers) {
  const TemporaryFolder folder;
  const std::string file = folder.file("job.json", job.dump());
  const std::string results = folder / "results";
  std::filesystem::create_directory(results);
  Launch launch(run(workers, {file, results}));
  const int exit_code = launch.wait(seconds(100));
  Job done;
  if (exit_code != 0)
    done.failure = str("the job of ", workers, " workers ",
                       exit_code < 0 ? std::string("still runs after 100 s") : str("ended with ", exit_code), ":\n",
                       launch.out(), launch.err());
  for (int w = 0; w < workers; ++w) done.workers.push_back(read_outcomes(str(results, '/', w)));
  return done;
}

std::string shape_of(const Case& given) { return given["cluster"].dump() + given["replicas_per_worker"].dump(); }

std::map<std::string, std::vector<json>>& cases_by_shape() {
  static std::map<std::string, std::vector<json>> cases;
  return cases;
}

const Job& job_of(const Case& given) {
  static std::map<std::string, Job> jobs;
  const std::string shape = shape_of(given);
  if (const auto done = jobs.find(shape); done != jobs.end()) return done->second;
  int workers = 0;
  for (const auto& [type, count] : given["cluster"].items()) workers += count.get<int>();
  Job& all = jobs[shape];
  all.workers.resize(static_cast<std::size_t>(workers));
  // A case may end its job, and the rest then need another.
  for (std::vector<json> left = cases_by_shape()[shape]; !left.empty();) {
    const Job job = run_job(
        {{"cluster", given["cluster"]}, {"replicas", given["replicas_per_worker"]}, {"strategies", 1}, {"cases", left}},
        workers);
    for (std::size_t w = 0; w < job.workers.size(); ++w)
      all.workers[w].insert(job.workers[w].begin(), job.workers[w].end());
    all.failure += job.failure;
    const std::size_t done = std::erase_if(left, [&](const json& each) {
      return std::ranges::all_of(all.workers, [&](const Outcomes& one) { return one.contains(each["id"]); });
    });
    if (done == 0 || !all.failure.empty()) break;
  }
  return all;
}

}  // namespace

void remember_for_job(const Case& given) { cases_by_shape()[shape_of(given)].push_back(given.data); }

json run_multi_worker(const Case& given) {
  const Job& job = job_of(given);
  json outcomes = json::array();
  for (std::size_t w = 0; w < job.workers.size(); ++w) {
    const auto found = job.workers[w].find(given.id());
    if (found == job.workers[w].end()) throw UnknownForm(str("worker ", w, " has no result\n", job.failure));
    outcomes.push_back(found->second.at(0));
    if (outcomes.back().contains("unknown_form")) throw UnknownForm(outcomes.back()["unknown_form"]);
  }
  // An error is expected on all workers; one that only some of them have is shown with the results of the others.
  const json first = outcomes[0].value("error", json());
  for (const json& outcome : outcomes)
    if (first.is_null() || outcome.value("error", json()) != first) return {{"workers", outcomes}};
  return outcomes[0];
}

TEST(MultiWorkerJob, MakesTwentyStrategiesInARow) {
  const json sum = {{"id", "sum"}, {"program", "all_reduce"}, {"op", "SUM"}, {"values", {{1, 2}, {3, 4}}}};
  const Job job = run_job({{"cluster", {{"worker", 2}}}, {"replicas", 2}, {"strategies", 20}, {"cases", {sum}}}, 2);
  EXPECT_EQ(job.failure, "");
  for (const Outcomes& worker : job.workers) {
    ASSERT_EQ(worker.count("sum"), 1u);
    EXPECT_EQ(worker.at("sum"), std::vector<json>(20, json{{"local", {10.0, 10.0}}}));
  }
}

TEST(MultiWorkerJob, EndWellForEveryShape) {
  for (const auto& [shape, cases] : cases_by_shape()) EXPECT_EQ(job_of({cases[0]}).failure, "");
}

bool runs_multi_worker() { return true; }

#else

bool runs_multi_worker() { return false; }
void remember_for_job(const Case&) {}
json run_multi_worker(const Case&) { throw UnknownForm("built without LOCKSTEP_CLUSTER"); }

TEST(MultiWorkerJob, MakesTwentyStrategiesInARow) { GTEST_SKIP() << "built without LOCKSTEP_CLUSTER"; }

#endif

}  // namespace lockstep::golden_cluster
