#include "lockstep/data/format/example.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/data/format/example_parser.h"
#include "lockstep/data/format/wire.h"
#include "tests/support/expect_error.h"
#include "tests/support/hex.h"

namespace lockstep::data {
namespace {

using Bytes = std::vector<std::string>;
using Floats = std::vector<float>;
using Ints = std::vector<std::int64_t>;

constexpr std::string_view kSmall =
    "0a320a0b0a017312060a040a0261620a0d0a0178120812060a040000c03f0a140a0179120f1a0d0a0b01ffffffffffffffffff01";
// Written by TensorFlow 2.20.
constexpr std::string_view kEdges =
    "0a490a0c0a016212070a050a000a01780a150a01661210120e0a0c00000000000080bf9ec97f7f0a220a0169121d1a1b0a19007f8001ac0280"
    "808080808080808001ffffffffffffffff7f";

Example small() { return {{"s", Bytes{"ab"}}, {"x", Floats{1.5F}}, {"y", Ints{1, -1}}}; }

Example edges() {
  return {{"b", Bytes{"", "x"}},
          {"f", Floats{0.0F, -1.0F, 3.4e38F}},
          {"i",
           Ints{0, 127, 128, 300, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}}};
}

TEST(WriteExample, WritesTheBytesOfTensorFlow) {
  EXPECT_EQ(to_hex(write_example(small())), kSmall);
  EXPECT_EQ(to_hex(write_example(edges())), kEdges);
  EXPECT_EQ(to_hex(write_example({})), "0a00");
  EXPECT_EQ(to_hex(write_example({{"e", Ints{}}})), "0a090a070a016512021a00");
}

TEST(ReadExample, ReadsTheBytesOfTensorFlow) {
  EXPECT_EQ(read_example(from_hex(kSmall)), small());
  EXPECT_EQ(read_example(from_hex(kEdges)), edges());
  EXPECT_EQ(read_example(""), Example{});
  EXPECT_EQ(read_example(from_hex("0a00")), Example{});
}

TEST(ReadExample, GivesBackWhatWasWritten) {
  Floats wide(784);
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = std::sqrt(static_cast<float>(i));
  const Example example{{"image", wide}, {"label", Ints{7}}, {"", Bytes{std::string(300, 'z')}}, {"none", Floats{}}};
  EXPECT_EQ(read_example(write_example(example)), example);
}

struct Message {
  std::string bytes;
  Message& field(int number, int type, const std::string& content) {
    bytes += static_cast<char>(number << 3 | type);
    bytes += content;
    return *this;
  }
  Message& nested(int number, const std::string& content) {
    field(number, 2, "");
    wire::append_varint(bytes, content.size());
    bytes += content;
    return *this;
  }
};

std::string entry(const std::string& name, const std::string& feature) {
  return Message().nested(1, name).nested(2, feature).bytes;
}
std::string example_of(const std::vector<std::string>& entries) {
  Message features;
  for (const std::string& one : entries) features.nested(1, one);
  return Message().nested(1, features.bytes).bytes;
}
std::string list_feature(int kind, const std::string& list) { return Message().nested(kind, list).bytes; }

const std::string kOne = from_hex("0000803f");
const std::string kTwo = from_hex("00000040");

TEST(ReadExample, TakesUnpackedListsAndMixedOnes) {
  const std::string floats = Message().field(1, 5, kOne).field(1, 5, kTwo).nested(1, kOne + kTwo).bytes;
  const std::string ints = Message().field(1, 0, "\x01").nested(1, "\x02\x03").field(1, 0, "\x04").bytes;
  EXPECT_EQ(read_example(example_of({entry("f", list_feature(2, floats)), entry("i", list_feature(3, ints))})),
            (Example{{"f", Floats{1, 2, 1, 2}}, {"i", Ints{1, 2, 3, 4}}}));
}

TEST(ReadExample, TakesTheLastOfEqualNames) {
  const std::string first = entry("k", list_feature(2, Message().nested(1, kOne).bytes));
  const std::string last = entry("k", list_feature(3, Message().nested(1, "\x05").bytes));
  EXPECT_EQ(read_example(example_of({first, last})), (Example{{"k", Ints{5}}}));
  EXPECT_EQ(read_example(example_of({first}) + example_of({last})), (Example{{"k", Ints{5}}})) << "in two parts";
}

TEST(ReadExample, PassesOverUnknownFields) {
  const std::string group =
      Message().field(6, 3, "").field(1, 0, "\x01").field(7, 3, "").field(7, 4, "").field(6, 4, "").bytes;
  const std::string unknown = Message()
                                  .field(5, 0, from_hex("ffff03"))
                                  .field(6, 1, std::string(8, 'x'))
                                  .nested(7, "abc")
                                  .field(8, 5, "1234")
                                  .bytes +
                              group;
  const std::string list = unknown + Message().nested(1, kOne).bytes + unknown;
  const std::string feature = unknown + list_feature(2, list) + unknown;
  const std::string features = unknown + Message().nested(1, unknown + entry("f", feature) + unknown).bytes + unknown;
  const std::string record = unknown + Message().nested(1, features).bytes + unknown;
  EXPECT_EQ(read_example(record), (Example{{"f", Floats{1}}}));
}

struct Broken {
  const char* name;
  std::string bytes;
  std::string fragment;
};

std::vector<Broken> broken_examples() {
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += '\x33';
  return {
      {"text", "this is no example", "the record is not a tf.train.Example"},
      {"length past the end", from_hex("0a05"), "a length goes past the end"},
      {"length 2^64 - 1", from_hex("0affffffffffffffffff01"), "a length goes past the end"},
      {"endless number", from_hex("0affffffffffffffffffff01"), "more than 64 bits"},
      {"number of 65 bits", from_hex("0affffffffffffffffff02"), "more than 64 bits"},
      {"cut number", from_hex("0aff"), "a number goes past the end"},
      {"tag 0", from_hex("0000"), "a field's tag is not valid"},
      {"type 6", from_hex("0e"), "a field's tag is not valid"},
      {"tag above 32 bits", from_hex("8a8080808002"), "a field's tag is not valid"},
      {"group end", from_hex("34"), "a group ends that did not start"},
      {"other group end", from_hex("333c"), "a group ends that did not start"},
      {"open group", from_hex("33"), "a number goes past the end"},
      {"deep groups", deep, "nested too deeply"},
      {"features as number", from_hex("0801"), "its features are not a message"},
      {"feature as number", from_hex("0a020801"), "a feature is not a message"},
      {"name as number", from_hex("0a040a020801"), "no name or no message"},
      {"two names", example_of({Message().nested(1, "a").nested(1, "b").bytes}), "two names or two messages"},
      {"list as number", example_of({entry("f", from_hex("1001"))}), "list is not a message"},
      {"two lists", example_of({entry("f", list_feature(2, "") + list_feature(3, ""))}), "two lists"},
      {"half a float", example_of({entry("f", list_feature(2, Message().nested(1, "abc").bytes))}), "inside a number"},
      {"cut float", example_of({entry("f", list_feature(2, from_hex("0d0000")))}), "a number goes past the end"},
      {"float as varint", example_of({entry("f", list_feature(2, from_hex("0801")))}),
       "float list holds something else"},
      {"bytes as varint", example_of({entry("f", list_feature(1, from_hex("0801")))}),
       "bytes list holds something else"},
      {"int as fixed", example_of({entry("f", list_feature(3, from_hex("0d00000000")))}),
       "int64 list holds something else"},
      {"cut packed int", example_of({entry("f", list_feature(3, from_hex("0a01ff")))}), "a number goes past the end"},
  };
}

TEST(ReadExample, TellsBrokenBytesWithTheirPlace) {
  for (const Broken& c : broken_examples()) {
    expect_error([&] { read_example(c.bytes); }, Code::DataLoss, errors::kExample, {c.fragment, "of the record"},
                 c.name);
  }
}

TEST(ReadExample, TakesNoPrefixOfARecordForAnotherRecord) {
  const std::string whole = write_example(edges());
  for (std::size_t size = 1; size < whole.size(); ++size) {
    EXPECT_THROW(read_example(std::string_view(whole).substr(0, size)), DataLoss) << size;
  }
}

TEST(ExampleParser, PutsFixedFeaturesIntoTheCallersMemory) {
  const ExampleParser parser({{"s", FixedLenFeature{FeatureType::Bytes, {1}}},
                              {"x", FixedLenFeature{FeatureType::Float, {}}},
                              {"y", FixedLenFeature{FeatureType::Int64, {2, 1}}}});
  ASSERT_EQ(parser.columns().size(), 3u);
  EXPECT_EQ(parser.columns()[0].name, "s");
  EXPECT_EQ(parser.columns()[2].elements, 2);
  std::vector<std::string_view> s(2);
  Floats x(2);
  Ints y(4);
  const std::string record = from_hex(kSmall);
  const std::string other = write_example({{"y", Ints{5, 6}}, {"x", Floats{2}}, {"s", Bytes{"cd"}}, {"z", Ints{1}}});
  const std::vector<FeatureSlot> slots{{.bytes = s.data()}, {.floats = x.data()}, {.ints = y.data()}};
  parser.parse_batch(std::vector<std::string_view>{record, other}, slots);
  EXPECT_EQ(s, (std::vector<std::string_view>{"ab", "cd"}));
  EXPECT_EQ(x, (Floats{1.5F, 2}));
  EXPECT_EQ(y, (Ints{1, -1, 5, 6}));
}

TEST(ExampleParser, FindsFeaturesInAnyOrder) {
  const ExampleParser parser({{"a", FixedLenFeature{FeatureType::Int64, {}}},
                              {"b", FixedLenFeature{FeatureType::Int64, {}}},
                              {"c", FixedLenFeature{FeatureType::Int64, {}}}});
  const auto number = [](char value) { return list_feature(3, Message().nested(1, std::string(1, value)).bytes); };
  std::vector<std::string> entries{entry("a", number(1)), entry("b", number(2)), entry("bb", number(9)),
                                   entry("c", number(3))};
  std::sort(entries.begin(), entries.end());
  do {
    Ints values(3);
    parser.parse(example_of(entries),
                 std::vector<FeatureSlot>{{.ints = &values[0]}, {.ints = &values[1]}, {.ints = &values[2]}});
    ASSERT_EQ(values, (Ints{1, 2, 3}));
  } while (std::next_permutation(entries.begin(), entries.end()));
}

TEST(ExampleParser, FillsInDefaults) {
  const ExampleParser parser({{"f", FixedLenFeature{FeatureType::Float, {3}, Floats{1, 2, 3}}},
                              {"i", FixedLenFeature{FeatureType::Int64, {2, 2}, Ints{9}}},
                              {"s", FixedLenFeature{FeatureType::Bytes, {}, Bytes{"none"}}}});
  Floats f(3);
  Ints i(4);
  std::string_view s;
  const std::vector<FeatureSlot> slots{{.floats = f.data()}, {.ints = i.data()}, {.bytes = &s}};
  for (const std::string& record : {std::string(), example_of({entry("f", ""), entry("i", "")})}) {
    parser.parse(record, slots);
    EXPECT_EQ(f, (Floats{1, 2, 3}));
    EXPECT_EQ(i, (Ints{9, 9, 9, 9}));
    EXPECT_EQ(s, "none");
  }
}

TEST(ExampleParser, AppendsVariableFeatures) {
  const ExampleParser parser({{"f", VarLenFeature{FeatureType::Float}},
                              {"i", VarLenFeature{FeatureType::Int64}},
                              {"s", VarLenFeature{FeatureType::Bytes}}});
  const std::vector<std::string> records{write_example({{"f", Floats{1, 2}}, {"s", Bytes{"x", "", "y"}}}),
                                         write_example({}), write_example({{"f", Floats{3}}, {"i", Ints{4, 5}}})};
  const std::vector<std::string_view> views(records.begin(), records.end());
  VarLenValues f, i, s;
  const std::vector<FeatureSlot> slots{{.variable = &f}, {.variable = &i}, {.variable = &s}};
  for (int again = 0; again < 2; ++again) {
    parser.parse_batch(views, slots);
    EXPECT_EQ(f.floats, (Floats{1, 2, 3}));
    EXPECT_EQ(f.lengths, (Ints{2, 0, 1}));
    EXPECT_EQ(i.ints, (Ints{4, 5}));
    EXPECT_EQ(i.lengths, (Ints{0, 0, 2}));
    EXPECT_EQ(s.bytes, (std::vector<std::string_view>{"x", "", "y"}));
    EXPECT_EQ(s.lengths, (Ints{3, 0, 0}));
    for (VarLenValues* values : {&f, &i, &s}) values->clear();
  }
}

TEST(ExampleParser, TellsFeaturesThatDoNotFit) {
  const ExampleParser parser({{"x", FixedLenFeature{FeatureType::Float, {2}}}});
  Floats x(2);
  const std::vector<FeatureSlot> slots{{.floats = x.data()}};
  struct Case {
    Example example;
    std::vector<std::string> fragments;
  };
  const std::vector<Case> table{
      {{}, {"feature 'x' is required but missing", "type float"}},
      {{{"y", Floats{1, 2}}}, {"feature 'x' is required but missing"}},
      {{{"x", Ints{1, 2}}}, {"not of the type", "asked for float, the record has int64"}},
      {{{"x", Floats{1}}}, {"as many values as its shape", "shape [2] needs 2, the record has 1"}},
      {{{"x", Floats{1, 2, 3}}}, {"needs 2, the record has more"}},
      {{{"x", Floats{}}}, {"the record has 0"}},
  };
  for (const Case& c : table) {
    const std::string record = write_example(c.example);
    expect_error([&] { parser.parse(record, slots); }, Code::InvalidArgument, errors::kFeature, c.fragments);
  }
  const std::string good = write_example({{"x", Floats{1, 2}}});
  Floats many(6);
  expect_error(
      [&] {
        parser.parse_batch(std::vector<std::string_view>{good, good, ""},
                           std::vector<FeatureSlot>{{.floats = many.data()}});
      },
      Code::InvalidArgument, errors::kFeature, {"row 2 of the batch", "feature 'x'"});
}

TEST(ExampleParser, TellsBrokenBytesOfWantedFeatures) {
  const ExampleParser parser({{"f", VarLenFeature{FeatureType::Float}}});
  VarLenValues values;
  const std::string half = example_of({entry("f", list_feature(2, Message().nested(1, "abc").bytes))});
  expect_error([&] { parser.parse(half, std::vector<FeatureSlot>{{.variable = &values}}); }, Code::DataLoss,
               errors::kExample, {"inside a number", "of the record, feature 'f'"});
}

TEST(ExampleParser, RefusesSlotsThatDoNotFit) {
  const ExampleParser parser({{"x", FixedLenFeature{FeatureType::Float, {1}, Floats{0}}}});
  std::int64_t number = 0;
  for (const std::vector<FeatureSlot>& slots :
       {std::vector<FeatureSlot>{}, std::vector<FeatureSlot>{{}}, std::vector<FeatureSlot>{{.ints = &number}}}) {
    expect_error([&] { parser.parse("", slots); }, Code::InvalidArgument, errors::kFeature,
                 {"needs a slot of its kind"});
  }
  EXPECT_NO_THROW(parser.parse_batch({}, std::vector<FeatureSlot>{{}})) << "no records need no room";
}

TEST(ExampleParser, RefusesDescriptionsThatMakeNoSense) {
  const auto refuse = [](const FixedLenFeature& feature, const std::string& fragment) {
    expect_error(
        [&] {
          ExampleParser parser({{"x", feature}});
        },
        Code::InvalidArgument, errors::kFeature, {"feature 'x'", fragment});
  };
  refuse({FeatureType::Float, {-1}}, "[-1]");
  refuse({FeatureType::Float, {1 << 30, 1 << 30, 1 << 30}}, "too large");
  refuse({FeatureType::Float, {2}, Ints{1}}, "its default is int64");
  refuse({FeatureType::Float, {3}, Floats{1, 2}}, "needs 3 default values, got 2");
}

}  // namespace
}  // namespace lockstep::data
