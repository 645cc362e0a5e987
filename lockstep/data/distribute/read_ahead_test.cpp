#include "lockstep/data/distribute/read_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::data {
namespace {

std::function<std::optional<int>()> count_to(int end, std::atomic<int>* made = nullptr) {
  return [=, next = 0]() mutable -> std::optional<int> {
    if (next == end) return std::nullopt;
    if (made) made->fetch_add(1);
    return next++;
  };
}

TEST(ReadAhead, HandsOutEverythingInOrderWhateverTheCapacity) {
  for (const std::size_t capacity : {0u, 1u, 2u, 7u, 1000u}) {
    ReadAhead<int> items(count_to(100), capacity);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(items.next(), i) << capacity;
    EXPECT_EQ(items.next(), std::nullopt);
    EXPECT_EQ(items.next(), std::nullopt);
  }
}

TEST(ReadAhead, MakesNoMoreThanItsCapacityBeforehand) {
  std::atomic<int> made = 0;
  {
    ReadAhead<int> items(count_to(2000, &made), 3);
    EXPECT_EQ(items.next(), 0);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (made < 4 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(made, 4) << "it reads ahead";
    for (int taken = 1; taken < 2000; ++taken) {
      ASSERT_EQ(items.next(), taken);
      ASSERT_LE(made, taken + 1 + 3);
    }
  }
  std::atomic<int> lazily = 0;
  ReadAhead<int> items(count_to(100, &lazily), 0);
  EXPECT_EQ(items.next(), 0);
  EXPECT_EQ(lazily, 1);
}

TEST(ReadAhead, ThrowsWhereTheFailureWasAndGoesOnBehindIt) {
  for (const std::size_t capacity : {0u, 1u, 2u, 5u}) {
    ReadAhead<int> items(
        [next = 0]() mutable -> std::optional<int> {
          const int item = next++;
          if (item == 2 || item == 3) throw std::runtime_error(std::to_string(item));
          return item < 6 ? std::optional(item) : std::nullopt;
        },
        capacity);
    std::vector<std::string> seen;
    for (int i = 0; i < 8; ++i) {
      try {
        const std::optional<int> item = items.next();
        seen.push_back(item ? std::to_string(*item) : "end");
      } catch (const std::runtime_error& error) {
        seen.push_back(std::string("error ") + error.what());
      }
    }
    EXPECT_EQ(seen, (std::vector<std::string>{"0", "1", "error 2", "error 3", "4", "5", "end", "end"})) << capacity;
  }
}

TEST(ReadAhead, MakesNothingAfterAFailureUntilAsked) {
  std::atomic<int> calls = 0;
  ReadAhead<int> items([&]() -> std::optional<int> { throw std::runtime_error(std::to_string(++calls)); }, 3);
  for (int asked = 1; asked <= 500; ++asked) {
    EXPECT_THROW(items.next(), std::runtime_error);
    std::this_thread::yield();
    ASSERT_EQ(calls, asked);
  }
}

TEST(ReadAhead, CanBeDroppedAtAnyPoint) {
  for (int taken = 0; taken < 40; ++taken) {
    ReadAhead<int> items(count_to(30), 1 + static_cast<std::size_t>(taken) % 4);
    for (int i = 0; i < taken; ++i) items.next();
  }
}

TEST(ReadAhead, CanBeDroppedWhileItFails) {
  for (int i = 0; i < 300; ++i) {
    ReadAhead<int> items([]() -> std::optional<int> { throw std::runtime_error("failed"); }, 2);
    if (i % 2 == 0) std::this_thread::yield();
    for (int asked = 0; asked < i % 3; ++asked) EXPECT_THROW(items.next(), std::runtime_error);
  }
}

}  // namespace
}  // namespace lockstep::data
