#include "lockstep/comm/nccl/sum_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::nccl {
namespace {

using engine::Shard;
using Floats = std::vector<float>;

constexpr float kUntouched = -12345;

struct Worker {
  std::vector<Floats> inputs;
  Floats room;
  Floats own_output;
  std::optional<std::size_t> written_over = {};  ///< the input that is the output too
  SumSchedule schedule = {};

  Floats& output() { return written_over ? inputs[*written_over] : own_output; }
  Floats& array(const Part& part) {
    return part.array == Part::Input    ? inputs.at(static_cast<std::size_t>(part.index))
           : part.array == Part::Output ? output()
                                        : room;
  }
  /// Throws if the schedule leaves the array.
  float* at(const Part& part, std::size_t elements) {
    Floats& whole = array(part);
    if (elements > 0) static_cast<void>(whole.at(part.begin + elements - 1));
    return whole.data() + part.begin;
  }
  void add(const std::vector<Addition>& additions, std::int64_t divisor) {
    for (const Addition& addition : additions) {
      std::vector<const void*> inputs_at;
      for (const Part& part : addition.inputs) inputs_at.push_back(at(part, addition.elements));
      void* const into = at(addition.into, addition.elements);
      ordered_sum(Dtype::Float32, inputs_at.data(), static_cast<int>(inputs_at.size()), &into, 1, addition.elements,
                  addition.is_last ? divisor : 1);
    }
  }
};

/// Executes the schedules of all workers; messages between two workers arrive in order.
void carry_out(std::vector<Worker>& workers, std::int64_t divisor) {
  std::map<std::pair<int, int>, std::deque<Floats>> messages;
  const auto exchange = [&](auto sends, auto receives) {
    for (std::size_t w = 0; w < workers.size(); ++w) {
      for (const Transfer& send : workers[w].schedule.*sends) {
        const float* const from = workers[w].at(send.part, send.elements);
        messages[{static_cast<int>(w), send.peer}].emplace_back(from, from + send.elements);
      }
    }
    for (std::size_t w = 0; w < workers.size(); ++w) {
      for (const Transfer& receive : workers[w].schedule.*receives) {
        auto& queue = messages[{receive.peer, static_cast<int>(w)}];
        ASSERT_FALSE(queue.empty());
        ASSERT_EQ(queue.front().size(), receive.elements);
        std::copy(queue.front().begin(), queue.front().end(), workers[w].at(receive.part, receive.elements));
        queue.pop_front();
      }
    }
    for (const auto& [pair, queue] : messages) ASSERT_TRUE(queue.empty()) << pair.first << " to " << pair.second;
  };
  for (Worker& worker : workers) worker.add(worker.schedule.own, divisor);
  exchange(&SumSchedule::sends, &SumSchedule::receives);
  for (Worker& worker : workers) worker.add(worker.schedule.additions, divisor);
  exchange(&SumSchedule::shares, &SumSchedule::collects);
}

struct Case {
  int workers, replicas;
  std::size_t elements;
};

/// Numbers of very different sizes, so that every order of summation rounds differently.
Floats uneven_floats(std::size_t count, std::uint32_t seed) {
  Floats values(count);
  std::uint32_t bits = 2654435761U * (seed + 1);
  for (float& value : values) {
    bits = 1664525U * bits + 1013904223U;
    value = std::ldexp(static_cast<float>(bits >> 8), static_cast<int>(bits >> 4 & 7)) - 1e9F;
  }
  return values;
}

/// Shards of all kinds of sizes: empty, uneven, all with one worker.
std::vector<Shard> uneven_shards(std::size_t elements, int workers) {
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(workers), 0);
  counts.front() = elements / 3;
  counts.back() += elements - elements / 3;
  return engine::shards_of(elements, counts, workers);
}

void expect_tree_order(const Case& each, const std::vector<Shard>& shards, Result result, std::int64_t divisor,
                       std::optional<std::size_t> written_over = {}) {
  SCOPED_TRACE(str(each.workers, " x ", each.replicas, ", ", each.elements, " elements"));
  const auto plan = engine::plan_sum(each.workers, each.replicas);
  std::vector<Worker> workers(static_cast<std::size_t>(each.workers));
  std::vector<Floats> all;
  for (int w = 0; w < each.workers; ++w) {
    Worker& worker = workers[static_cast<std::size_t>(w)];
    worker.schedule = schedule_sum(plan, w, shards, result);
    for (int k = 0; k < each.replicas; ++k) {
      all.push_back(uneven_floats(each.elements, static_cast<std::uint32_t>(all.size())));
      worker.inputs.push_back(all.back());
    }
    worker.room.assign(worker.schedule.room, kUntouched);
    const Shard& own = shards[static_cast<std::size_t>(w)];
    worker.written_over = written_over;
    worker.own_output.assign(result == Result::Everywhere ? each.elements : own.size(), kUntouched);
  }
  carry_out(workers, divisor);
  Floats expected(each.elements);
  std::vector<const void*> arrays;
  for (const Floats& values : all) arrays.push_back(values.data());
  void* const into = expected.data();
  ordered_sum(Dtype::Float32, arrays.data(), static_cast<int>(arrays.size()), &into, 1, each.elements, divisor);
  for (std::size_t w = 0; w < workers.size(); ++w) {
    const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(result == Result::Shard ? shards[w].begin : 0);
    const Floats& output = workers[w].output();
    EXPECT_EQ(output, Floats(begin, begin + static_cast<std::ptrdiff_t>(output.size()))) << "worker " << w;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int workers = 1; workers <= 16; ++workers) {
    for (const int replicas : {1, 2, 3, 4, 6}) {
      for (const std::size_t elements : {0, 1, 65, 1001}) all.push_back({workers, replicas, elements});
    }
  }
  return all;
}

TEST(SumSchedule, GivesEveryWorkerTheBitsOfTheTree) {
  for (const Case& each : cases())
    expect_tree_order(each, engine::shards_of(each.elements, {}, each.workers), Result::Everywhere, 1);
}

TEST(SumSchedule, DividesOnceForAMean) {
  for (const Case& each : cases())
    expect_tree_order(each, engine::shards_of(each.elements, {}, each.workers), Result::Everywhere,
                      each.workers * each.replicas);
}

TEST(SumSchedule, GivesEachWorkerItsShard) {
  for (const Case& each : cases())
    expect_tree_order(each, uneven_shards(each.elements, each.workers), Result::Shard, 1);
}

TEST(SumSchedule, MayWriteOverAnInput) {
  for (const Case& each : cases()) {
    const auto shards = engine::shards_of(each.elements, {}, each.workers);
    for (const int replica : {0, each.replicas - 1})
      expect_tree_order(each, shards, Result::Everywhere, 1, static_cast<std::size_t>(replica));
  }
}

TEST(SumSchedule, NeedsNoRoomOfItsOwnForOneReplicaPerWorker) {
  const auto shards = engine::shards_of(4096, {}, 4);
  const SumSchedule schedule = schedule_sum(engine::plan_sum(4, 1), 2, shards, Result::Everywhere);
  EXPECT_TRUE(schedule.own.empty());
  EXPECT_EQ(schedule.room, 3 * 1024U);  // one shard from each of the others
  EXPECT_EQ(schedule.sends.size(), 3U);
  EXPECT_EQ(schedule.additions.size(), 1U);
}

}  // namespace
}  // namespace lockstep::nccl
