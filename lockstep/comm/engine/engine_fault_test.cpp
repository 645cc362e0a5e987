#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/comm/socket.h"
#include "tests/support/engine_workers.h"

namespace lockstep::engine {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Each worker calls its own collective; returns the errors that they see.
std::vector<SeenError> errors_of(int workers, const std::function<void(Engine&, int rank)>& call) {
  MemoryStore store;
  std::vector<SeenError> seen(static_cast<std::size_t>(workers));
  on_workers(workers, [&](int rank) {
    Engine engine(options_for(rank, workers, 1, store));
    engine.run(0, {.kind = CollectiveKind::Barrier, .name = "begin"});
    seen[static_cast<std::size_t>(rank)] = error_of([&] { call(engine, rank); });
    // The engine is unusable and reports why.
    EXPECT_EQ(error_of([&] { engine.run(1, {.kind = CollectiveKind::Barrier}); }).parts.what,
              seen[static_cast<std::size_t>(rank)].parts.what);
  });
  return seen;
}

struct Mismatch {
  const char* what;
  std::function<void(Collective&)> change;
  std::string part;
};

TEST(EngineFaults, DifferentCallsAreAnErrorThatNamesBothOnEveryWorker) {
  static const std::vector<std::int64_t> kShape{300, 10}, kTurned{10, 300};
  const std::vector<Mismatch> cases{
      {"size", [](Collective& c) { c.elements = 3001; }, "shapes"},
      {"small and large", [](Collective& c) { c.elements = 1; }, "shapes"},
      {"shape", [](Collective& c) { c.shape = kTurned; }, "shapes"},
      {"dtype of one size", [](Collective& c) { c.dtype = Dtype::Int32; }, "element types"},
      {"reduction", [](Collective& c) { c.reduce = ReduceOp::Mean; }, "reductions"},
      {"order", [](Collective& c) { c.name = "b"; }, "names"},
  };
  for (const bool is_small : {false, true}) {
    for (const Mismatch& each : cases) {
      SCOPED_TRACE(str(each.what, is_small ? ", small" : ", large"));
      const auto seen = errors_of(3, [&](Engine& engine, int rank) {
        std::vector<float> data(4000);
        const void* const input = data.data();
        void* const output = data.data();
        Collective mine{.kind = CollectiveKind::AllReduce,
                        .elements = is_small ? 7U : 3000U,
                        .inputs = {input},
                        .outputs = {output},
                        .shape = kShape,
                        .name = "a"};
        if (rank == 1) each.change(mine);
        engine.run(0, mine);
      });
      for (const SeenError& error : seen) {
        EXPECT_EQ(error.number, errors::kCollectiveMismatch) << error.text;
        EXPECT_EQ(error.parts.what, "worker 1 and workers 0 and 2 called collectives with different " + each.part);
        EXPECT_EQ(error.parts.where, "collective 1 of channel 0");
        EXPECT_TRUE(
            contains(error.parts.seen, "workers 0 and 2: all-reduce SUM of float32 [300, 10] \"a\"; worker 1: "))
            << error.parts.seen;
      }
    }
  }
}

TEST(EngineFaults, AllReduceHereAndBroadcastThereIsNoticedAtOnce) {
  const auto seen = errors_of(2, [&](Engine& engine, int rank) {
    std::vector<float> data(4000);
    const void* const input = data.data();
    void* const output = data.data();
    Collective mine{.kind = rank == 0 ? CollectiveKind::Broadcast : CollectiveKind::AllReduce,
                    .elements = data.size(),
                    .inputs = {input},
                    .outputs = {output}};
    engine.run(0, mine);
  });
  for (const SeenError& error : seen) {
    EXPECT_EQ(error.number, errors::kCollectiveMismatch);
    EXPECT_TRUE(contains(error.parts.seen, "broadcast of float32 4000 elements from worker 0")) << error.parts.seen;
  }
}

TEST(EngineFaults, AbortEndsEveryWaitWithItsReasonOnAllWorkers) {
  std::atomic<Clock::duration> took{};
  const auto seen = errors_of(3, [&](Engine& engine, int rank) {
    if (rank == 2) {
      std::this_thread::sleep_for(100ms);
      const auto begin = Clock::now();
      engine.abort(Unavailable(errors::kPeerLost, {.what = "worker 7 (10.0.0.7:2222) died", .help = "look there"}));
      const SeenError later = error_of([&] { engine.run(0, {.kind = CollectiveKind::Barrier}); });
      took = Clock::now() - begin;
      throw Unavailable(later.number, later.parts);
    }
    engine.run(0, {.kind = CollectiveKind::Barrier});
  });
  for (const SeenError& error : seen) EXPECT_EQ(error.parts.what, "worker 7 (10.0.0.7:2222) died") << error.text;
  EXPECT_LT(took.load(), 1s);
}

TEST(EngineFaults, ALateCollectiveNamesTheWorkersThatAreBehind) {
  std::atomic<int> warned = 0;
  MemoryStore store;
  on_workers(3, [&](int rank) {
    Engine engine(options_for(rank, 3, 1, store));
    const auto submit = [&](const char* name) {
      return engine.submit(0, {.kind = CollectiveKind::Barrier, .name = name});
    };
    while (rank == 1 && warned < 2) std::this_thread::sleep_for(1ms);
    const auto ahead = submit("end of data"), awaited = submit("loss");
    // The other worker reaches "end of data" too and is then not behind, although neither has reached "loss".
    const auto patience = rank == 1 ? 60s : 1s;
    engine.wait(awaited, patience, [&](std::string_view name, const std::vector<int>& late) {
      ++warned;
      EXPECT_NE(rank, 1);
      EXPECT_EQ(name, "loss");
      EXPECT_EQ(late, std::vector{1});
    });
    engine.wait(ahead, 60s, [](std::string_view name, const auto&) { ADD_FAILURE() << name << " was done before"; });
  });
  EXPECT_EQ(warned, 2);
}

TEST(EngineFaults, ATimeLimitNamesWhoIsMissing) {
  std::atomic<int> ready = 0;
  const auto seen = errors_of(3, [&](Engine& engine, int rank) {
    if (rank == 1) {  // is elsewhere until the others have given up
      while (ready < 2) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(50ms);
      return engine.run(0, {.kind = CollectiveKind::Barrier});
    }
    try {
      engine.run(0, {.kind = CollectiveKind::Barrier, .name = "end of epoch"}, Deadline::after(200ms));
    } catch (...) {
      ++ready;
      throw;
    }
  });
  for (const SeenError& error : seen) {
    EXPECT_EQ(error.number, errors::kTimeout) << error.text;
    EXPECT_EQ(error.code, Code::DeadlineExceeded);
    EXPECT_EQ(error.parts.what, "worker 1 did not reach a collective in time");
    EXPECT_TRUE(contains(error.parts.where, "barrier \"end of epoch\"")) << error.text;
  }
}

TEST(EngineFaults, AWorkerThatLeavesEarlyIsNamedByThoseWhoGoOn) {
  MemoryStore store;
  on_workers(3, [&](int rank) {
    Engine engine(options_for(rank, 3, 1, store));
    const auto make = [&](int collectives) {
      for (int k = 0; k < collectives; ++k) engine.run(0, {.kind = CollectiveKind::Barrier});
    };
    if (rank == 1) return make(5);
    // One of the others may learn of it from the other one, a collective earlier.
    const SeenError seen = error_of([&] { make(6); });
    EXPECT_EQ(seen.number, errors::kPeerLost);
    EXPECT_EQ(seen.parts.what, "worker 1 has left the job") << seen.text;
  });
}

TEST(EngineFaults, LeavingRightAfterTheLastCollectiveLosesNothing) {
  for (int round = 0; round < 20; ++round) {
    MemoryStore store;
    on_workers(3, [&](int rank) {
      auto options = options_for(rank, 3, 1, store);
      options.chunk_bytes = 64 << 10;
      Engine engine(options);
      std::vector<float> data(300000, rank == 0 ? 1.5F : 0.0F);
      const void* const input = data.data();
      void* const output = data.data();
      engine.run(1, {.kind = CollectiveKind::Broadcast,
                     .elements = data.size(),
                     .inputs = rank == 0 ? std::vector{input} : std::vector<const void*>(),
                     .outputs = {output}});
      EXPECT_EQ(std::count(data.begin(), data.end(), 1.5F), static_cast<std::ptrdiff_t>(data.size()));
    });
  }
}

TEST(EngineFaults, DestructionWhileOthersWaitDoesNotHang) {
  MemoryStore store;
  const auto begin = Clock::now();
  on_workers(2, [&](int rank) {
    Engine engine(options_for(rank, 2, 1, store));
    if (rank == 0) {
      // Not waited for.
      engine.submit(0, {.kind = CollectiveKind::Barrier});
      std::this_thread::sleep_for(50ms);
      return;
    }
    EXPECT_NE(error_of([&] { engine.run(1, {.kind = CollectiveKind::Barrier}); }).number, 0);
  });
  EXPECT_LT(Clock::now() - begin, 10s);
}

TEST(EngineFaults, AMissingWorkerIsNamed) {
  MemoryStore store;
  auto options = options_for(0, 3, 1, store);
  options.connect = Deadline::after(200ms);
  const SeenError seen = error_of([&] { Engine engine(options); });
  EXPECT_EQ(seen.number, errors::kPeerMissing);
  EXPECT_TRUE(contains(seen.parts.what, "workers 1 and 2 did not connect to worker 0's data port 127.0.0.1:"))
      << seen.text;
}

// As behind a firewall that drops packets: the queue of a socket that accepts nothing is full.
TEST(EngineFaults, ADataPortThatDoesNotAnswerIsNamedSoon) {
  const Descriptor silent = listen_at({"127.0.0.1", 0});
  ASSERT_EQ(::listen(silent.get(), 0), 0);
  const std::string name = own_name(silent.get());
  std::vector<Descriptor> queue;
  while (queue.size() < 8 && (queue.empty() || queue.back()))
    queue.push_back(connect_to(parse_address(name), Deadline::after(100ms)));
  ASSERT_FALSE(queue.back()) << "the queue never fills up";
  MemoryStore store;
  store.face().set("engine/data/0", name + " " + std::string(32, 'a'));
  auto options = options_for(1, 2, 1, store);
  options.connect = Deadline::after(30s);
  options.reach = 200ms;
  const auto begin = std::chrono::steady_clock::now();
  const SeenError seen = error_of([&] { Engine engine(options); });
  EXPECT_EQ(seen.number, errors::kPeerMissing);
  EXPECT_TRUE(contains(seen.parts.what, "worker 0's data engine at " + name + " does not answer")) << seen.text;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

// Its system accepts connections for it, but the worker is frozen: the others notice by its heartbeats.
TEST(EngineFaults, AFailureOfTheJobEndsTheWaitForAWorkerThatNeverAnswers) {
  const Descriptor frozen = listen_at({"127.0.0.1", 0});
  MemoryStore store;
  store.face().set("engine/data/0", own_name(frozen.get()) + " " + std::string(32, 'a'));
  auto options = options_for(1, 2, 1, store);
  const auto begin = Clock::now();
  options.store.check = [begin] {
    if (Clock::now() - begin > 200ms)
      throw Unavailable(errors::kPeerLost, {.what = "worker 0 stopped answering", .help = "look there"});
  };
  EXPECT_EQ(error_of([&] { Engine engine(options); }).parts.what, "worker 0 stopped answering");
  EXPECT_LT(Clock::now() - begin, 10s);
}

TEST(EngineFaults, APortInUseIsNamed) {
  const Descriptor taken = listen_at({"127.0.0.1", 0});
  const std::string name = own_name(taken.get());
  MemoryStore store;
  auto options = options_for(0, 2, 1, store);
  options.port = std::stoi(name.substr(name.rfind(':') + 1));
  const SeenError seen = error_of([&] { Engine engine(options); });
  EXPECT_EQ(seen.number, errors::kPortInUse);
  EXPECT_TRUE(contains(seen.parts.what, name)) << seen.text;
}

// As a flood at the data port does it to a connection whose hello has not arrived yet.
TEST(EngineFaults, AConnectionThatIsClosedUnansweredIsMadeAgain) {
  MemoryStore store;
  const EngineStore face = store.face();
  std::jthread first([&] {
    auto options = options_for(0, 2, 1, store);
    options.channels = 1;
    Engine engine(options);
    engine.run(0, {.kind = CollectiveKind::Barrier});
  });
  const std::string card = face.get("engine/data/0", Deadline::after(10s));
  const Descriptor port = listen_at({"127.0.0.1", 0});
  constexpr int kClosed = 3;
  std::jthread relay([&] {
    for (int k = 0; k < kClosed; ++k) {
      ASSERT_TRUE(is_ready(port.get(), POLLIN, Deadline::after(10s)));
      accept_from(port.get());
    }
    ASSERT_TRUE(is_ready(port.get(), POLLIN, Deadline::after(10s)));
    const Descriptor caller = accept_from(port.get()).socket;
    const Descriptor worker = connect_to(parse_address(card.substr(0, card.find(' '))), Deadline::after(10s));
    for (const Deadline end = Deadline::after(10s); !end.expired();) {
      pollfd both[] = {{caller.get(), POLLIN, 0}, {worker.get(), POLLIN, 0}};
      ::poll(both, 2, poll_milliseconds(end));
      for (int from = 0; from < 2; ++from) {
        char bytes[4096];
        const ssize_t count = ::recv(both[from].fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (count == 0) return;  // a worker has left
        if (count > 0) (void)write_all(both[1 - from].fd, bytes, static_cast<std::size_t>(count), end);
      }
    }
  });
  auto options = options_for(1, 2, 1, store);
  options.channels = 1;
  options.store.get = [&](const std::string& key, Deadline deadline) {
    if (key != "engine/data/0") return face.get(key, deadline);
    return own_name(port.get()) + card.substr(card.find(' '));
  };
  Engine engine(options);
  engine.run(0, {.kind = CollectiveKind::Barrier});
}

TEST(EngineFaults, APortThatAlwaysClosesIsNamed) {
  const Descriptor port = listen_at({"127.0.0.1", 0});
  MemoryStore store;
  store.face().set("engine/data/0", own_name(port.get()) + " " + std::string(32, 'a'));
  std::jthread closing([&](const std::stop_token& stop) {
    while (!stop.stop_requested())
      if (is_ready(port.get(), POLLIN, Deadline::after(10ms))) accept_from(port.get());
  });
  auto options = options_for(1, 2, 1, store);
  options.reach = 200ms;
  const SeenError seen = error_of([&] { Engine engine(options); });
  EXPECT_EQ(seen.number, errors::kPeerMissing);
  EXPECT_TRUE(contains(seen.parts.what, "worker 0's data engine at " + own_name(port.get()) + " does not answer"))
      << seen.text;
}

// Before the connections stand a stranger is dropped; afterwards there is no listener.
TEST(EngineFaults, StrayConnectionsEndNobody) {
  MemoryStore store;
  EngineStore face = store.face();
  std::string name;
  std::vector<Descriptor> strangers;
  std::jthread first([&] {
    auto options = options_for(0, 2, 1, store);
    Engine engine(options);
    engine.run(0, {.kind = CollectiveKind::Barrier});
  });
  name = face.get("engine/data/0", Deadline::after(10s));
  name = name.substr(0, name.find(' '));
  for (int k = 0; k < 200; ++k) {
    strangers.push_back(connect_to(parse_address(name), Deadline::after(10s)));
    ASSERT_TRUE(strangers.back());
    // Silent ones, ones that send too little, ones that send garbage.
    const std::string rubbish(static_cast<std::size_t>(k % 7) * 40, static_cast<char>(k));
    (void)write_all(strangers.back().get(), rubbish.data(), rubbish.size(), Deadline::after(10s));
    if (k % 3 == 0) strangers.back().close();
  }
  auto options = options_for(1, 2, 1, store);
  Engine engine(options);
  engine.run(0, {.kind = CollectiveKind::Barrier});  // worker 0 has all its connections now
  EXPECT_FALSE(connect_to(parse_address(name), Deadline::after(1s))) << "the data port still listens";
}

TEST(EngineFaults, AFloodAtTheDataPortKeepsNobodyOut) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  MemoryStore store;
  EngineStore face = store.face();
  std::jthread first([&] {
    auto options = options_for(0, 2, 1, store);
    options.hosts = {"127.0.0.1", "127.0.0.1"};
    Engine engine(options);
    engine.run(0, {.kind = CollectiveKind::Barrier});
  });
  const std::string text = face.get("engine/data/0", Deadline::after(10s));
  const SocketAddress port = look_up(parse_address(text.substr(0, text.find(' ')))).front();
  std::vector<Descriptor> strangers;
  for (rlim_t k = 0; k < std::min<rlim_t>(3000, files.rlim_max - 500); ++k) {
    strangers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ::connect(strangers.back().get(), port.get(), port.size);
    if (k % 3 == 0) strangers.back().close();
  }
  Engine engine(options_for(1, 2, 1, store));
  engine.run(0, {.kind = CollectiveKind::Barrier});
}

}  // namespace
}  // namespace lockstep::engine
