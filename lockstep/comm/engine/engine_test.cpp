#include "lockstep/comm/engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "lockstep/base/text.h"
#include "tests/support/engine_workers.h"

namespace lockstep::engine {
namespace {

struct Local {  // the arrays of a worker's replicas
  std::vector<Bytes> values;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;

  Local(int rank, int replicas, Dtype dtype, std::size_t elements, unsigned seed) {
    for (int k = 0; k < replicas; ++k) values.push_back(values_of(rank * replicas + k, dtype, elements, seed));
    for (Bytes& each : values) inputs.push_back(each.data());
    for (Bytes& each : values) outputs.push_back(each.data());
  }
};

void check_all_reduce(Engine& engine, int rank, int workers, int replicas, Dtype dtype, std::size_t elements,
                      ReduceOp op) {
  const int ids = workers * replicas;
  Local local(rank, replicas, dtype, elements, 7);
  engine.run(0, {.kind = CollectiveKind::AllReduce,
                 .dtype = dtype,
                 .elements = elements,
                 .inputs = local.inputs,
                 .outputs = local.outputs,
                 .reduce = op,
                 .name = "sum"});
  const Bytes expected = expected_sum(dtype, elements, ids, op == ReduceOp::Mean ? ids : 1, 7);
  for (const Bytes& each : local.values)
    ASSERT_TRUE(each == expected) << workers << " x " << replicas << " " << to_string(dtype) << " " << elements;
}

void check_reduce_scatter(Engine& engine, int rank, int workers, int replicas, Dtype dtype, std::size_t elements) {
  Local local(rank, replicas, dtype, elements, 8);
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(workers), elements / static_cast<std::size_t>(workers));
  counts.back() += elements % static_cast<std::size_t>(workers);
  const std::size_t begin = static_cast<std::size_t>(rank) * (elements / static_cast<std::size_t>(workers));
  const std::size_t own = counts[static_cast<std::size_t>(rank)];
  Bytes part(own * size_of(dtype));
  void* const output = part.data();
  engine.run(0, {.kind = CollectiveKind::ReduceScatter,
                 .dtype = dtype,
                 .elements = elements,
                 .inputs = local.inputs,
                 .outputs = {output},
                 .counts = counts});
  const Bytes whole = expected_sum(dtype, elements, workers * replicas, 1, 8);
  const auto* from = whole.data() + begin * size_of(dtype);
  ASSERT_TRUE(std::equal(part.begin(), part.end(), from)) << workers << " x " << replicas << " " << elements;
}

void check_broadcast(Engine& engine, int rank, int workers, Dtype dtype, std::size_t elements) {
  for (int root = 0; root < workers; ++root) {
    const Bytes expected = values_of(root, dtype, elements, 9);
    Bytes first = rank == root ? expected : Bytes(expected.size());
    Bytes second(expected.size());
    const void* const input = first.data();
    const std::vector<void*> outputs = {first.data(), second.data()};
    engine.run(0, {.kind = CollectiveKind::Broadcast,
                   .dtype = dtype,
                   .elements = elements,
                   .inputs = rank == root ? std::vector{input} : std::vector<const void*>(),
                   .outputs = outputs,
                   .root = root});
    ASSERT_TRUE(first == expected && second == expected) << workers << " workers, root " << root << ", " << elements;
  }
}

void check_all_gather(Engine& engine, int rank, int workers, Dtype dtype, std::size_t elements) {
  // Uneven: worker k has a share that grows with k; worker 1 has nothing.
  std::vector<std::uint64_t> counts;
  Bytes expected;
  for (int k = 0; k < workers; ++k) {
    counts.push_back(k == 1 ? 0 : elements * static_cast<std::size_t>(k + 1) / 2);
    const Bytes part = values_of(k, dtype, counts.back(), 10);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const Bytes own = values_of(rank, dtype, counts[static_cast<std::size_t>(rank)], 10);
  Bytes all(expected.size());
  Bytes copy(expected.size());
  const void* const input = own.data();
  const std::vector<void*> outputs = {all.data(), copy.data()};
  engine.run(0, {.kind = CollectiveKind::AllGather,
                 .dtype = dtype,
                 .elements = std::accumulate(counts.begin(), counts.end(), std::size_t{0}),
                 .inputs = {input},
                 .outputs = outputs,
                 .counts = counts});
  ASSERT_TRUE(all == expected && copy == expected) << workers << " workers, " << elements;
}

class Topologies : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(Topologies, EveryOperationGivesTheBitsOfTheOneOrder) {
  const int workers = GetParam().first;
  const int replicas = GetParam().second;
  MemoryStore store;
  on_workers(workers, [&](int rank) {
    auto options = options_for(rank, workers, replicas, store);
    // Some over connections, some by reading each other's memory, some mixed.
    options.in_place = workers > 2 ? rank != 2 : replicas != 2;
    Engine engine(options);
    for (const std::size_t elements : {0, 1, 101, 1001, 9000})  // inline, one chunk, several
      for (const Dtype dtype : {Dtype::Float32, Dtype::BFloat16})
        check_all_reduce(engine, rank, workers, replicas, dtype, elements, ReduceOp::Sum);
    for (const Dtype dtype : {Dtype::Float16, Dtype::Int64, Dtype::Float64, Dtype::UInt8, Dtype::Int16, Dtype::Int8})
      for (const std::size_t elements : {101, 3001})
        check_all_reduce(engine, rank, workers, replicas, dtype, elements, ReduceOp::Sum);
    check_all_reduce(engine, rank, workers, replicas, Dtype::Float32, 5001, ReduceOp::Mean);
    check_all_reduce(engine, rank, workers, replicas, Dtype::BFloat16, 33, ReduceOp::Mean);
    for (const std::size_t elements : {0, 1, 77, 1001, 9001}) {
      check_reduce_scatter(engine, rank, workers, replicas, Dtype::Float32, elements);
      check_broadcast(engine, rank, workers, Dtype::Bool, elements);
      check_broadcast(engine, rank, workers, Dtype::Float32, elements);
      check_all_gather(engine, rank, workers, Dtype::Bool, elements);
      check_all_gather(engine, rank, workers, Dtype::Int16, elements);
      engine.run(0, {.kind = CollectiveKind::Barrier});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Engine, Topologies,
                         ::testing::Values(std::pair{1, 1}, std::pair{1, 3}, std::pair{1, 4}, std::pair{2, 1},
                                           std::pair{2, 2}, std::pair{2, 3}, std::pair{2, 5}, std::pair{3, 1},
                                           std::pair{3, 2}, std::pair{3, 3}, std::pair{4, 1}, std::pair{5, 1},
                                           std::pair{5, 3}, std::pair{6, 1}, std::pair{1, 6}));

TEST(Engine, ChannelsRunIndependentlyAndTicketsInAnyOrder) {
  constexpr int kWorkers = 3;
  MemoryStore store;
  on_workers(kWorkers, [&](int rank) {
    Engine engine(options_for(rank, kWorkers, 1, store));
    std::vector<std::unique_ptr<Local>> locals;
    std::vector<Engine::Ticket> tickets;
    constexpr std::size_t kElements = 30000;
    for (unsigned k = 0; k < 6; ++k) {
      locals.push_back(std::make_unique<Local>(rank, 1, Dtype::Float32, kElements, k));
      const auto& local = *locals.back();
      tickets.push_back(engine.submit(1, {.kind = CollectiveKind::AllReduce,
                                          .elements = kElements,
                                          .inputs = local.inputs,
                                          .outputs = local.outputs,
                                          .name = str("bucket ", k)}));
      // The program's own collectives, at a different point on each worker.
      if (static_cast<int>(k) == 2 * rank) engine.run(0, {.kind = CollectiveKind::Barrier});
    }
    for (unsigned k = 6; k-- > 0;) {
      engine.wait(tickets[k]);
      EXPECT_TRUE(locals[k]->values[0] == expected_sum(Dtype::Float32, kElements, kWorkers, 1, k));
    }
    EXPECT_EQ(error_of([&] { engine.wait(tickets[0]); }).code, Code::InvalidArgument);
  });
}

// A queue that was full and that the socket then took whole must be refilled.
TEST(Engine, LargeArraysNeverStall) {
  MemoryStore store;
  on_workers(2, [&](int rank) {
    auto options = options_for(rank, 2, 1, store);
    options.chunk_bytes = 256 << 10;
    options.call_seconds = 60;
    options.in_place = false;
    Engine engine(options);
    std::vector<float> data(std::size_t{8} << 20, 1.0F);
    const void* const input = data.data();
    void* const output = data.data();
    for (int k = 0; k < 12; ++k)
      engine.run(1,
                 {.kind = CollectiveKind::AllReduce, .elements = data.size(), .inputs = {input}, .outputs = {output}});
    EXPECT_EQ(data[12345], 4096.0F);
  });
}

TEST(Engine, ACallHasTheEnginesTimeLimitUnlessItSaysItself) {
  MemoryStore store;
  const auto failures = [&](const char* prefix, Deadline limit) {
    std::atomic<int> failed = 0;
    on_workers(2, [&](int rank) {
      auto options = options_for(rank, 2, 1, store);
      options.prefix = prefix;
      options.call_seconds = 0.3;
      Engine engine(options);
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(900));
      try {
        engine.run(0, {.kind = CollectiveKind::Barrier}, limit);
      } catch (const Error&) {
        ++failed;
      }
    });
    return failed.load();
  };
  EXPECT_EQ(failures("never", Deadline::never()), 0);
  EXPECT_GE(failures("default", Deadline::by_default()), 1);
}

TEST(Engine, RingOfGlooAddsUpToo) {
  constexpr int kWorkers = 3;
  MemoryStore store;
  on_workers(kWorkers, [&](int rank) {
    auto options = options_for(rank, kWorkers, 2, store);
    options.ring = true;
    options.channels = 1;
    Engine engine(options);
    for (const std::size_t elements : {0, 5, 30001}) {
      Local local(rank, 2, Dtype::Int32, elements, 3);  // integers: any order gives the same
      engine.run(0, {.kind = CollectiveKind::AllReduce,
                     .dtype = Dtype::Int32,
                     .elements = elements,
                     .inputs = local.inputs,
                     .outputs = local.outputs,
                     .implementation = Implementation::Ring});
      const Bytes expected = expected_sum(Dtype::Int32, elements, 2 * kWorkers, 1, 3);
      for (const Bytes& each : local.values) EXPECT_TRUE(each == expected) << elements;
    }
  });
}

TEST(Engine, NcclThatIsAskedForIsTheOneOrderHere) {
  MemoryStore store;
  on_workers(2, [&](int rank) {
    Engine engine(options_for(rank, 2, 1, store));
    Local local(rank, 1, Dtype::Float32, 1001, 3);
    engine.run(0, {.kind = CollectiveKind::AllReduce,
                   .elements = 1001,
                   .inputs = local.inputs,
                   .outputs = local.outputs,
                   .implementation = Implementation::Nccl});
    EXPECT_TRUE(local.values[0] == expected_sum(Dtype::Float32, 1001, 2, 1, 3));
  });
}

TEST(Engine, WritesDownItsLastCollectives) {
  MemoryStore store;
  on_workers(2, [&](int rank) {
    Engine engine(options_for(rank, 2, 1, store));
    for (int k = 0; k < 1010; ++k) engine.run(0, {.kind = CollectiveKind::Barrier, .name = str("step ", k)});
    const std::string log = engine.log();
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1000);
    EXPECT_TRUE(contains(log, "#1009 ") && contains(log, "barrier \"step 1009\"")) << log.substr(0, 200);
    EXPECT_FALSE(contains(log, "\"step 9\""));
  });
}

TEST(Engine, RefusesCallsThatMakeNoSense) {
  MemoryStore store;
  Engine engine(options_for(0, 1, 2, store));
  float value = 0;
  const void* const input = &value;
  void* const output = &value;
  const auto refused = [&](const Collective& collective) {
    const SeenError seen = error_of([&] { engine.run(0, collective); });
    EXPECT_FALSE(seen.parts.help.empty()) << seen.text;
    return seen.code == Code::InvalidArgument;
  };
  EXPECT_TRUE(refused({.kind = CollectiveKind::AllReduce, .elements = 1, .inputs = {input}, .outputs = {output}}));
  EXPECT_TRUE(refused({.kind = CollectiveKind::Broadcast, .elements = 1, .inputs = {input}, .root = 1}));
  EXPECT_TRUE(refused({.kind = CollectiveKind::AllGather, .elements = 1, .inputs = {input}, .outputs = {output}}));
  EXPECT_EQ(error_of([&] { engine.run(2, {}); }).code, Code::InvalidArgument);
  engine.run(0, {.kind = CollectiveKind::Barrier});  // none of these ended the engine
}

TEST(Engine, SaysWhyAPluginCannotBeLoaded) {
#ifdef LOCKSTEP_SANITIZED
  GTEST_SKIP() << "sanitizers refuse RTLD_DEEPBIND";
#endif
  const SeenError seen = error_of([] { Engine engine({.ring = true, .library = "/nowhere/liblockstep_engine.so"}); });
  EXPECT_EQ(seen.number, errors::kEngineLoad);
  EXPECT_TRUE(contains(seen.text, "/nowhere/liblockstep_engine.so")) << seen.text;
}

}  // namespace
}  // namespace lockstep::engine
