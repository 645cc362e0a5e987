#include "lockstep/data/format/npy.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/hex.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::data {
namespace {

using Shape = std::vector<std::int64_t>;

// A file with this header text, padded as numpy does, and so many bytes of data.
std::string npy(std::string text, std::size_t data_bytes = 0, int major = 1) {
  const std::size_t before = major == 1 ? 10 : 12;
  while ((before + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  for (std::size_t i = 0; i < (major == 1 ? 2U : 4U); ++i) file += static_cast<char>(text.size() >> (8 * i));
  return file + text + std::string(data_bytes, 'd');
}

std::string dict(const std::string& descr, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }";
}

struct Golden {
  const char* hex;
  NpyType type;
  Shape shape;
  bool fortran;
  const char* data;
};

// Written by numpy 2.4.
const Golden kGolden[] = {
    {"934e554d5059010076007b276465736372273a20273c6634272c2027666f727472616e5f6f72646572273a2046616c73652c2027736861706"
     "5273a"
     "2028322c2033292c207d202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020202"
     "020"
     "202020202020202020200a000000000000803f0000004000004040000080400000a040",
     NpyType::Float32,
     {2, 3},
     false,
     "000000000000803f0000004000004040000080400000a040"},
    {"934e554d5059010076007b276465736372273a20273c6938272c2027666f727472616e5f6f72646572273a2046616c73652c2027736861706"
     "5273a"
     "2028292c207d20202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020202"
     "020"
     "202020202020202020200a0500000000000000",
     NpyType::Int64,
     {},
     false,
     "0500000000000000"},
    {"934e554d5059010076007b276465736372273a20273c6932272c2027666f727472616e5f6f72646572273a20547275652c202773686170652"
     "73a20"
     "28322c2033292c207d20202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020202"
     "020"
     "202020202020202020200a000003000100040002000500",
     NpyType::Int16,
     {2, 3},
     true,
     "000003000100040002000500"},
    {"934e554d50590200740000007b276465736372273a20277c6231272c2027666f727472616e5f6f72646572273a2046616c73652c202773686"
     "17065"
     "273a2028322c292c207d202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020202"
     "020"
     "202020202020202020200a0100",
     NpyType::Bool,
     {2},
     false,
     "0100"},
    {"934e554d50590300740000007b276465736372273a20277c7531272c2027666f727472616e5f6f72646572273a2046616c73652c202773686"
     "17065"
     "273a2028322c2030292c207d20202020202020202020202020202020202020202020202020202020202020202020202020202020202020202"
     "020"
     "202020202020202020200a",
     NpyType::UInt8,
     {2, 0},
     false,
     ""},
};

TEST(Npy, ReadsFilesOfNumpy) {
  const TemporaryFolder folder;
  for (const Golden& golden : kGolden) {
    const NpyFile file(folder.file("a.npy", from_hex(golden.hex)));
    EXPECT_EQ(file.header().type, golden.type);
    EXPECT_EQ(file.header().shape, golden.shape);
    EXPECT_EQ(file.header().fortran_order, golden.fortran);
    EXPECT_EQ(to_hex(file.data()), golden.data);
  }
}

TEST(Npy, WritesTheBytesOfNumpy) {
  const TemporaryFolder folder;
  for (const Golden& golden : kGolden) {
    if (golden.type == NpyType::Bool || golden.type == NpyType::UInt8) continue;  // versions 2 and 3, by request
    write_npy(folder / "w.npy", golden.type, golden.shape, from_hex(golden.data), golden.fortran);
    EXPECT_EQ(to_hex(file_content(folder / "w.npy")), golden.hex);
  }
}

TEST(Npy, GivesBackEveryTypeAndShape) {
  const TemporaryFolder folder;
  for (int type = 0; type <= static_cast<int>(NpyType::Complex128); ++type) {
    for (const Shape& shape : {Shape{}, Shape{3}, Shape{0}, Shape{2, 3, 4}, Shape(32, 1)}) {
      std::size_t bytes = item_size(static_cast<NpyType>(type));
      for (const auto extent : shape) bytes *= static_cast<std::size_t>(extent);
      const std::string data(bytes, 'x');
      write_npy(folder / "f", static_cast<NpyType>(type), shape, data);
      const NpyFile file(folder / "f");
      EXPECT_EQ(file.header().type, static_cast<NpyType>(type));
      EXPECT_EQ(file.header().shape, shape);
      EXPECT_EQ(file.data(), data);
      EXPECT_EQ(file.header().data_offset % 64, 0u);
    }
  }
}

TEST(Npy, TakesOtherWaysToWriteTheSameHeader) {
  for (const char* text : {"{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}",
                           "{\"descr\":\"<f4\",\"fortran_order\":False,\"shape\":(2,3)}",
                           "{ 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , }",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }"}) {
    const NpyHeader header = parse_npy_header(npy(text), "m");
    EXPECT_EQ(header.type, NpyType::Float32) << text;
    EXPECT_EQ(header.shape, (Shape{2, 3})) << text;
    EXPECT_EQ(header.data_bytes, 24u) << text;
  }
  EXPECT_EQ(parse_npy_header(npy(dict("'<i1'", "(1,)")), "m").type, NpyType::Int8);
}

TEST(Npy, WritesLongHeadersInVersion2) {
  const std::string header = npy_header(NpyType::UInt8, Shape(40, 1));
  EXPECT_EQ(header[6], 1);
  EXPECT_EQ(parse_npy_header(header, "m").shape, Shape(40, 1));
  const NpyHeader read = parse_npy_header(npy(dict("'<f8'", "(7,)"), 0, 2), "m");
  EXPECT_EQ(read.shape, Shape{7});
}

struct Case {
  const char* name;
  std::string bytes;
  std::string fragment;
};

TEST(Npy, TellsDamagedFilesWithTheirPlace) {
  const std::string good = npy(dict("'<f4'", "(2, 3)"), 24);
  std::string version = good;
  version[6] = 4;
  std::string minor = good;
  minor[7] = 1;
  std::string long_header = good;
  long_header[9] = '\x7f';
  const std::string text = dict("'<f4'", "(2, 3)") + "\n";
  ASSERT_NE((10 + text.size()) % 16, 0u);
  std::string unaligned = "\x93NUMPY";
  unaligned += std::string("\1\0", 2) + static_cast<char>(text.size()) + '\0' + text;
  const std::vector<Case> table{
      {"empty", "", "does not start with"},
      {"text", "a,b,c\n1,2,3\n", "does not start with"},
      {"cut magic", good.substr(0, 5), "does not start with"},
      {"cut version", good.substr(0, 7), "ends inside its header"},
      {"cut length", good.substr(0, 9), "ends inside its header"},
      {"cut header", good.substr(0, 100), "longer than it can be"},
      {"version 4", version, "version 4.0"},
      {"version 1.1", minor, "version 1.1"},
      {"length above the file", long_header, "longer than it can be"},
      {"no dictionary", npy("hello"), "'{' expected"},
      {"list", npy("['descr']"), "'{' expected"},
      {"code", npy("__import__('os').system('true')"), "'{' expected"},
      {"key without quotes", npy("{descr: '<f4'}"), "text in quotes"},
      {"unknown key", npy("{'descr': '<f4', 'extra': 1}"), "unknown key 'extra'"},
      {"key twice", npy("{'descr': '<f4', 'descr': '<f4'}"), "comes twice"},
      {"missing key", npy("{'descr': '<f4', 'shape': (1,)}"), "lacks"},
      {"no keys", npy("{}"), "lacks"},
      {"open quotes", npy("{'descr: "), "do not close"},
      {"backslash", npy("{'de\\x73cr': '<f4'}"), "backslash"},
      {"no colon", npy("{'descr' '<f4'}"), "':' expected"},
      {"no comma", npy("{'descr': '<f4' 'shape': (1,)}"), "',' expected"},
      {"more behind", npy(dict("'<f4'", "(1,)") + " x"), "more text follows"},
      {"order as number", npy("{'fortran_order': 0}"), "True or False"},
      {"shape as number", npy(dict("'<f4'", "3")), "'(' expected"},
      {"shape as list", npy(dict("'<f4'", "[3]")), "'(' expected"},
      {"number in parentheses", npy(dict("'<f4'", "(3)")), "not a tuple"},
      {"negative", npy(dict("'<f4'", "(-3,)")), "a number expected"},
      {"fraction", npy(dict("'<f4'", "(3.0,)")), "',' or ')' expected"},
      {"expression", npy(dict("'<f4'", "(2**70,)")), "',' or ')' expected"},
      {"leading zero", npy(dict("'<f4'", "(03,)")), "starts with 0"},
      {"open shape", npy(dict("'<f4'", "(3, ")), "a number expected"},
      {"2^63", npy(dict("'<f4'", "(9223372036854775808,)")), "above 2^63 - 1"},
      {"product overflows", npy(dict("'<f4'", "(4294967296, 4294967296)")), "larger than any file"},
      {"product overflows next to 0", npy(dict("'<f4'", "(4294967296, 4294967296, 0)")), "larger than any file"},
      {"bytes overflow", npy(dict("'<c16'", "(1152921504606846976,)")), "larger than any file"},
      {"65 dimensions",
       npy(dict(
           "'<f4'", "(" +
                        [] {
                          std::string ones;
                          for (int i = 0; i < 65; ++i) ones += "1, ";
                          return ones;
                        }() +
                        ")")),
       "64 dimensions"},
      {"unknown type", npy(dict("'<f3'", "(1,)")), "unknown element type"},
      {"empty type", npy(dict("''", "(1,)")), "not an element type"},
      {"no order", npy(dict("'f4'", "(1,)")), "unknown element type"},
      {"unaligned", unaligned, "multiple of 16"},
      {"one byte short", good.substr(0, good.size() - 1), "fewer bytes than its shape needs"},
      {"one byte more", good + "x", "bytes follow its data"},
      {"huge shape", npy(dict("'<f4'", "(1000000000000,)"), 4), "fewer bytes than its shape needs"},
  };
  const TemporaryFolder folder;
  for (const Case& c : table) {
    const std::string path = folder.file("c.npy", c.bytes);
    expect_error([&] { NpyFile file(path); }, Code::DataLoss, errors::kNpy, {c.fragment, "byte ", " of " + path},
                 c.name);
  }
}

TEST(Npy, RefusesElementsThatAreNoLittleEndianNumbers) {
  const std::vector<Case> table{
      {"objects", npy(dict("'|O'", "(1,)")), "Python objects"},
      {"bytes", npy(dict("'|S5'", "(1,)")), "text"},
      {"text", npy(dict("'<U5'", "(1,)")), "text"},
      {"void", npy(dict("'|V8'", "(1,)")), "raw bytes"},
      {"dates", npy(dict("'<M8[ns]'", "(1,)")), "dates"},
      {"records", npy(dict("[('a', '<f4')]", "(1,)")), "records"},
      {"big endian", npy(dict("'>f4'", "(1,)")), "big-endian"},
  };
  for (const Case& c : table) {
    expect_error([&] { parse_npy_header(c.bytes, "m"); }, Code::Unimplemented, errors::kNpy,
                 {c.fragment, "byte ", "of m"}, c.name);
  }
}

TEST(Npy, TakesNoPrefixForAWholeFile) {
  const TemporaryFolder folder;
  const std::string good = npy(dict("'<f4'", "(2, 3)"), 24);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(NpyFile(folder.file("c.npy", good.substr(0, size))), DataLoss) << size;
  }
}

TEST(Npy, WriterRefusesDataThatDoesNotFit) {
  const TemporaryFolder folder;
  expect_error([&] { write_npy(folder / "f", NpyType::Int32, {3}, "1234"); }, Code::InvalidArgument, errors::kShape,
               {"shape (3,)", "4 bytes", "needs 12"});
}

TEST(MappedFile, ShowsTheBytesAndTellsWhatCannotBeMapped) {
  const TemporaryFolder folder;
  EXPECT_EQ(MappedFile(folder.file("f", "content")).bytes(), "content");
  EXPECT_EQ(MappedFile(folder.file("e", "")).bytes(), "");
  MappedFile first(folder / "f");
  const MappedFile second(std::move(first));
  EXPECT_EQ(second.bytes(), "content");
  expect_error([&] { MappedFile file(folder / "none"); }, Code::NotFound, errors::kFile, {"cannot open"});
  expect_error([&] { MappedFile file(folder / ""); }, Code::FailedPrecondition, errors::kFile, {"directory"});
}

}  // namespace
}  // namespace lockstep::data
