#include "lockstep/values/per_replica.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/errors.h"

namespace lockstep {

struct TestDigits {
  std::string image;
  int label;
};

namespace {

struct NoDefault {
  explicit NoDefault(int given) : value(given) {}
  int value;
};

template <class F>
std::string component_error(F&& f) {
  const SeenError error = error_of(f);
  EXPECT_EQ(error.code, Code::InvalidArgument);
  EXPECT_EQ(error.number, errors::kComponent);
  return error.text;
}

TEST(CurrentComponent, ScopesNestAndRestore) {
  EXPECT_EQ(current_component(), -1);
  {
    const ComponentScope outer(1);
    EXPECT_EQ(current_component(), 1);
    {
      const ComponentScope inner(-1);
      EXPECT_EQ(current_component(), -1);
    }
    EXPECT_EQ(current_component(), 1);
  }
  EXPECT_EQ(current_component(), -1);
}

TEST(CurrentComponent, EachThreadHasItsOwn) {
  const ComponentScope mine(2);
  int seen = 0;
  std::thread([&] { seen = current_component(); }).join();
  EXPECT_EQ(seen, -1);
}

TEST(PerReplica, HoldsOneComponentPerReplica) {
  PerReplica<int> value({1, 2});
  EXPECT_EQ(value.size(), 2u);
  value[1] = 5;
  EXPECT_EQ(value[1], 5);
  EXPECT_EQ(value.values(), (std::vector{1, 5}));
  int sum = 0;
  for (const int component : value) sum += component;
  EXPECT_EQ(sum, 6);
  EXPECT_EQ(std::move(value).release(), (std::vector{1, 5}));
}

TEST(PerReplica, ComponentsOfATemporaryOutliveIt) {
  const std::string text(100, 'x');
  const auto make = [&] { return PerReplica<std::string>({text}); };
  const std::string& component = make()[0];
  const std::vector<std::string>& components = make().values();
  const std::string& own = make().get();
  EXPECT_EQ(component, text);
  EXPECT_EQ(components[0], text);
  EXPECT_EQ(own, text);
}

/// Detects reads of a value after its lifetime.
struct Watched {
  explicit Watched(int its_value) : value(its_value) {}
  Watched(const Watched& other) : value(other.value), copies(other.copies + 1) {}
  Watched(Watched&& other) noexcept : value(std::exchange(other.value, -1)), copies(other.copies) {}
  Watched& operator=(const Watched&) = default;
  Watched& operator=(Watched&& other) noexcept {
    value = std::exchange(other.value, -1);
    copies = other.copies;
    return *this;
  }
  ~Watched() { value = -2; }

  int value;
  int copies = 0;
};

PerReplica<Watched> one_watched() {
  std::vector<Watched> one;
  one.emplace_back(7);
  return PerReplica<Watched>(std::move(one));
}

template <template <class> class Kind>
void expect_conversions_that_do_not_dangle() {
  using Value = Kind<Watched>;
  static_assert(std::is_convertible_v<Value, Watched> && std::is_convertible_v<const Value&, Watched>);
  static_assert(std::is_assignable_v<Watched&, Value> && std::is_assignable_v<Watched&, const Value&>);
  static_assert(std::is_same_v<decltype(std::declval<const Value&>().operator Watched()), Watched>);
  static_assert(!std::is_convertible_v<const Value&, Watched&> && !std::is_convertible_v<Value&, Watched&>);
  // A type that cannot be copied is taken only from a temporary.
  static_assert(std::is_convertible_v<Kind<std::unique_ptr<int>>, std::unique_ptr<int>>);
  static_assert(!std::is_convertible_v<const Kind<std::unique_ptr<int>>&, std::unique_ptr<int>>);
}

TEST(PerReplica, ConvertsToAValueThatOutlivesIt) {
  expect_conversions_that_do_not_dangle<PerReplica>();
  expect_conversions_that_do_not_dangle<Mirrored>();

  const Watched& of_temporary = one_watched();
  EXPECT_EQ(of_temporary.value, 7);
  EXPECT_EQ(of_temporary.copies, 0) << "it was moved out";

  std::vector<Watched> all;
  all.push_back(one_watched());
  Watched assigned(1);
  assigned = one_watched();
  EXPECT_EQ(all[0].value + assigned.value, 14);
  EXPECT_EQ(all[0].copies + assigned.copies, 0);

  const auto take = [](const Watched& watched) { return watched.value; };
  EXPECT_EQ(take(one_watched()), 7);

  auto kept = std::make_unique<PerReplica<Watched>>(one_watched());
  const Watched& of_constant = std::as_const(*kept);
  const Watched& of_variable = *kept;
  assigned = *kept;
  all.push_back(*kept);
  kept.reset();
  EXPECT_EQ(of_constant.value + of_variable.value + assigned.value + all[1].value, 28);
}

TEST(PerReplica, ConvertsATemporaryInsideAReplicaToItsOwnComponent) {
  const ComponentScope replica(1);
  const auto make = [] { return PerReplica<std::string>({std::string(50, 'a'), std::string(50, 'b')}); };
  const std::string& own = make();
  EXPECT_EQ(own, std::string(50, 'b'));
  std::string assigned;
  assigned = make();
  EXPECT_EQ(assigned, std::string(50, 'b'));
}

TEST(PerReplica, AMissingComponentIsAnError) {
  const PerReplica<int> value({1, 2});
  const std::string message = component_error([&] { value[2]; });
  EXPECT_NE(message.find("component 2 of a PerReplica with 2 components"), std::string::npos) << message;
  EXPECT_NE(message.find("does not exist"), std::string::npos) << message;
}

TEST(PerReplica, InsideAReplicaItIsItsOwnComponent) {
  const PerReplica<std::string> value({"a", "b"});
  const ComponentScope replica(1);
  EXPECT_EQ(value.get(), "b");
  const std::string converted = value;
  EXPECT_EQ(converted, "b");
}

TEST(PerReplica, OutsideOfAReplicaOnlyASingleComponentIsOneValue) {
  EXPECT_EQ(PerReplica<int>({7}).get(), 7);
  const PerReplica<int> two({1, 2});
  const std::string message = component_error([&] { two.get(); });
  EXPECT_NE(message.find("as one value outside of a replica"), std::string::npos) << message;
  component_error([] { PerReplica<int>(std::vector<int>{}).get(); });
}

TEST(PerReplica, AComponentOutOfRangeIsNotUsedSilently) {
  const PerReplica<int> two({1, 2});
  const ComponentScope third(2);
  component_error([&] { two.get(); });
}

TEST(PerReplica, ConvertsWhereOneValueIsNeeded) {
  const PerReplica<double> loss({0.5});
  const auto twice = [](double x) { return 2 * x; };
  EXPECT_EQ(twice(loss), 1.0);
  EXPECT_EQ(loss + 1, 1.5);
}

TEST(PerReplica, MapKeepsReplicasApart) {
  const PerReplica<TestDigits> batch({{"zero", 0}, {"one", 1}});
  EXPECT_EQ(batch.map([](const TestDigits& d) { return d.label * 10; }).values(), (std::vector{0, 10}));
  EXPECT_EQ(batch.map(&TestDigits::image).values(), (std::vector<std::string>{"zero", "one"}));
  EXPECT_EQ(batch.map([](const TestDigits& d) { return d.label == 1; })[1], true);
}

TEST(PerReplica, HoldsBoolsThatCanBeReferredTo) {
  PerReplica<bool> value({true, false});
  bool& second = value[1];
  second = true;
  EXPECT_TRUE(value.map([](bool b) { return b; })[1]);
  EXPECT_EQ(std::move(value).release(), (std::vector<bool>{true, true}));
}

TEST(PerReplica, HoldsWhatHasNoDefault) {
  const auto value = PerReplica<NoDefault>::generate(3, [](std::size_t k) { return NoDefault(static_cast<int>(k)); });
  EXPECT_EQ(value.map(&NoDefault::value).values(), (std::vector{0, 1, 2}));
}

TEST(PerReplica, HoldsWhatCanOnlyBeMoved) {
  std::vector<std::unique_ptr<int>> owners;
  owners.push_back(std::make_unique<int>(3));
  PerReplica<std::unique_ptr<int>> value(std::move(owners));
  EXPECT_EQ(*value[0], 3);
  PerReplica<std::unique_ptr<int>> moved = std::move(value);
  const std::unique_ptr<int> taken = std::move(moved).get();
  EXPECT_EQ(*taken, 3);
}

TEST(PerReplica, OfTuplesGivesPartsToStructuredBindings) {
  const PerReplica<std::pair<int, std::string>> results({{1, "a"}, {2, "b"}});
  const auto [numbers, letters] = results;
  static_assert(std::is_same_v<decltype(numbers), const PerReplica<int>>);
  EXPECT_EQ(numbers.values(), (std::vector{1, 2}));
  EXPECT_EQ(letters.values(), (std::vector<std::string>{"a", "b"}));

  const auto& [x, y, z] = PerReplica<std::tuple<int, bool, double>>({{1, true, 0.5}});
  EXPECT_EQ(x.get() + z.get(), 1.5);
  EXPECT_TRUE(y);

  auto [first, second] = Mirrored<std::array<int, 2>>({{{1, 2}}, {{1, 2}}});
  static_assert(std::is_same_v<decltype(first), Mirrored<int>>);
  EXPECT_EQ(first + second, 3);
}

TEST(PerReplica, PartsOfATemporaryAreMoved) {
  std::vector<std::pair<int, std::unique_ptr<int>>> components;
  components.emplace_back(1, std::make_unique<int>(2));
  auto [number, owner] = PerReplica<std::pair<int, std::unique_ptr<int>>>(std::move(components));
  EXPECT_EQ(number[0], 1);
  EXPECT_EQ(*owner[0], 2);
}

TEST(Mirrored, IsOneValueAnywhere) {
  const Mirrored<int> value({4, 5});
  EXPECT_EQ(value.get(), 4);
  const ComponentScope update(1);
  EXPECT_EQ(value.get(), 5);
  EXPECT_EQ(value + 1, 6);
}

TEST(Mirrored, WithoutComponentsIsNoValue) {
  component_error([] { Mirrored<int>(std::vector<int>{}).get(); });
}

TEST(IsDistributed, SaysWhichTypesAre) {
  EXPECT_TRUE(is_distributed_v<PerReplica<int>>);
  EXPECT_TRUE(is_distributed_v<const Mirrored<int>&>);
  EXPECT_FALSE(is_distributed_v<std::vector<PerReplica<int>>>);
}

struct Printed {
  std::string text;
  std::string expected;
};

class PrintComponents : public ::testing::TestWithParam<Printed> {};

TEST_P(PrintComponents, ReadsLikePython) { EXPECT_EQ(GetParam().text, GetParam().expected); }

struct Opaque {
  Opaque(int) {}
};

template <class T>
std::string printed(T component) {
  return str(PerReplica<T>({component}));
}

INSTANTIATE_TEST_SUITE_P(
    Table, PrintComponents,
    ::testing::Values(Printed{str(PerReplica<int>({1, 2})), "PerReplica:{\n  0: 1,\n  1: 2\n}"},
                      Printed{str(Mirrored<double>({1.0, 0.1})), "Mirrored:{\n  0: 1.0,\n  1: 0.1\n}"},
                      Printed{printed(0.1f), "PerReplica:{\n  0: 0.1\n}"},
                      Printed{printed(1e-5), "PerReplica:{\n  0: 1e-05\n}"},
                      Printed{printed(true), "PerReplica:{\n  0: True\n}"},
                      Printed{printed(std::uint8_t{65}), "PerReplica:{\n  0: 65\n}"},
                      Printed{printed(std::string("x")), "PerReplica:{\n  0: 'x'\n}"},
                      Printed{printed(std::tuple{1, std::vector{std::string("a")}}),
                              "PerReplica:{\n  0: (1, ['a'])\n}"},
                      Printed{printed(std::tuple{1}), "PerReplica:{\n  0: (1,)\n}"},
                      Printed{printed(std::map<std::string, bool>{{"b", false}, {"a", true}}),
                              "PerReplica:{\n  0: {'a': True, 'b': False}\n}"},
                      Printed{printed(std::optional<int>()), "PerReplica:{\n  0: None\n}"},
                      Printed{printed(TestDigits{"i", 3}), "PerReplica:{\n  0: TestDigits('i', 3)\n}"},
                      Printed{printed(Opaque(1)), "PerReplica:{\n  0: Opaque\n}"},
                      Printed{str(PerReplica<int>(std::vector<int>{})), "PerReplica:{\n}"}));

}  // namespace
}  // namespace lockstep
