// A process that joins one group of workers after another, for tests with real processes. Reads commands from standard
// input and answers each with one line: "ok ..." or "error L104 ...".
//
//   meet RANK ADDRESS,ADDRESS,...   joins the workers with these addresses, in this order; leaves the previous group
//   sum COUNT                       makes so many rounds of sums; 0: until one fails
//   part                            leaves the group

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/cluster_description.h"
#include "lockstep/comm/worker_group.h"

namespace lockstep {
namespace {

void say(std::string line) {
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  line += '\n';
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) return;  // the reader has gone
}

std::shared_ptr<WorkerGroup> meet(int rank, const std::string& addresses) {
  ClusterSpec::Job workers{"worker", {}};
  std::istringstream list(addresses);
  for (std::string address; std::getline(list, address, ',');) workers.addresses.push_back(address);
  return join_workers({.cluster = describe_cluster({workers}, {"worker", rank}), .join_seconds = 60});
}

/// Sums whole numbers, which have the same sum in every order. Throws if a sum is wrong.
void sum(WorkerGroup& group, WorkerGroup::Channel channel, std::size_t elements, int round) {
  const auto value = [&](int rank, std::size_t i) {
    return static_cast<float>((static_cast<std::size_t>(rank * 7 + round) + i) % 101);
  };
  std::vector<float> mine(elements);
  for (std::size_t i = 0; i < elements; ++i) mine[i] = value(group.rank(), i);
  group.run(channel,
            {.kind = CollectiveKind::AllReduce,
             .elements = elements,
             .inputs = {mine.data()},
             .outputs = {mine.data()},
             .name = str("sum of ", elements)},
            Deadline::after(std::chrono::seconds(60)));
  for (std::size_t i = 0; i < elements; ++i) {
    float expected = 0;
    for (int rank = 0; rank < group.workers(); ++rank) expected += value(rank, i);
    if (mine[i] != expected) throw std::runtime_error(str("element ", i, " is ", mine[i], ", not ", expected));
  }
}

void sum_rounds(WorkerGroup& group, int rounds) {
  for (int round = 0; rounds == 0 || round < rounds; ++round) {
    group.set_place(str("round ", round));
    sum(group, WorkerGroup::kProgram, 10, round);
    sum(group, WorkerGroup::kGradients, 5000, round);  // too many for one message
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

void obey(std::shared_ptr<WorkerGroup>& group, std::istringstream line) {
  std::string verb, addresses;
  int number = 0;
  line >> verb >> number >> addresses;
  if (verb == "meet" || verb == "part") group.reset();
  if (verb == "meet") group = meet(number, addresses);
  if (verb == "sum") sum_rounds(*group, number);
}

}  // namespace
}  // namespace lockstep

int main() {
  using namespace lockstep;
  set_log_sink([](Severity, std::string_view line) { say(str("log ", line)); });
  std::shared_ptr<WorkerGroup> group;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    try {
      obey(group, std::istringstream(line));
      say("ok " + line);
    } catch (const Error& error) {
      say(str("error L", error.number(), " ", error.what()));
    } catch (const std::exception& error) {
      say(str("error ", error.what()));
    }
  }
}
