#include "lockstep/data/format/csv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/data/format/byte_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::data {
namespace {

using Row = std::vector<std::string>;
using Rows = std::vector<Row>;

CsvReader over(std::string_view text, CsvOptions options = {}) {
  auto bytes = ByteReader::over_memory("m", text, options.compression, options.buffer_bytes);
  return {std::move(bytes), std::move(options)};
}

Rows read_all(CsvReader& reader) {
  Rows rows;
  while (reader.next()) {
    Row row;
    for (const CsvValue& value : reader.values()) {
      row.push_back(std::visit(
          [](const auto& v) {
            std::ostringstream out;
            out << v;
            return out.str();
          },
          value));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST(Csv, SplitsRecordsByRfc4180) {
  struct Case {
    const char* name;
    std::string text;
    Rows rows;
  };
  const std::vector<Case> table{
      {"plain", "a,b\n1,2\n3,4\n", {{"a", "b"}, {"1", "2"}, {"3", "4"}}},
      {"carriage returns", "a,b\r\n1,2\r\n", {{"a", "b"}, {"1", "2"}}},
      {"no last line end", "a,b\n1,2", {{"a", "b"}, {"1", "2"}}},
      {"empty fields", ",\n,x\ny,\n", {{"", ""}, {"", "x"}, {"y", ""}}},
      {"last field empty at the end", "a,", {{"a", ""}}},
      {"quotes", "\"a\",\"b c\"\n", {{"a", "b c"}}},
      {"delimiter in quotes", "\"a,b\",c\n", {{"a,b", "c"}}},
      {"line ends in quotes", "\"a\nb\",\"c\r\nd\"\n", {{"a\nb", "c\r\nd"}}},
      {"doubled quotes", "\"say \"\"hi\"\"\",\"\"\"\"\n", {{"say \"hi\"", "\""}}},
      {"doubled quotes in long fields",
       str("\"", std::string(20, 'a'), "\"\"\",\"", std::string(300, 'b'), "\"\"\"\n"),
       {{std::string(20, 'a') + '"', std::string(300, 'b') + '"'}}},
      {"empty quotes", "\"\",\"\"", {{"", ""}}},
      {"quoted, no last line end", "\"a\"", {{"a"}}},
      {"blank lines", "\na,b\n\n\r\n1,2\n\n", {{"a", "b"}, {"1", "2"}}},
      {"blank lines of one column", "a\n\n\"\"\n", {{"a"}, {""}, {""}}},
      {"blank lines of one column at the start", "\n\r\na\n\nb\n", {{""}, {""}, {"a"}, {""}, {"b"}}},
      {"blank lines of one quoted column at the start", "\n\"a\nb\"\n\n", {{""}, {"a\nb"}, {""}}},
      {"blank lines behind a byte order mark", "\xef\xbb\xbf\n\na", {{""}, {""}, {"a"}}},
      {"blanks are kept", " a , b \n", {{" a ", " b "}}},
      {"byte order mark",
       "\xef\xbb\xbf"
       "a,b\n",
       {{"a", "b"}}},
      {"bytes above 127", "\xc3\xa4,\xff\n", {{"\xc3\xa4", "\xff"}}},
      {"nothing", "", {}},
      {"only blank lines", "\n\r\n", {}},
  };
  for (const Case& c : table) {
    for (const std::size_t buffer : {1, 2, 5, 4096}) {
      auto reader = over(c.text, {.header = false, .buffer_bytes = buffer});
      EXPECT_EQ(read_all(reader), c.rows) << c.name << " through " << buffer;
    }
  }
}

TEST(Csv, TakesOtherDialects) {
  auto tabs = over("a\tb,c\n", {.header = false, .delimiter = '\t'});
  EXPECT_EQ(read_all(tabs), (Rows{{"a", "b,c"}}));
  auto raw = over("\"a,b\"\n", {.header = false, .quotes = false});
  EXPECT_EQ(read_all(raw), (Rows{{"\"a", "b\""}}));
}

TEST(Csv, ConvertsToTheColumnsTypes) {
  auto reader = over(
      "i,l,f,d,s\n-2147483648,9223372036854775807,1.5,1e300,\"x\"\n 7 ,+8,\tinf,-0, y\n",
      {.columns = {{CsvType::Int32}, {CsvType::Int64}, {CsvType::Float32}, {CsvType::Float64}, {CsvType::String}}});
  ASSERT_TRUE(reader.next());
  const auto values = reader.values();
  EXPECT_EQ(values[0], CsvValue(std::numeric_limits<std::int32_t>::min()));
  EXPECT_EQ(values[1], CsvValue(std::numeric_limits<std::int64_t>::max()));
  EXPECT_EQ(values[2], CsvValue(1.5F));
  EXPECT_EQ(values[3], CsvValue(1e300));
  EXPECT_EQ(values[4], CsvValue(std::string_view("x")));
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.values()[0], CsvValue(std::int32_t{7}));
  EXPECT_EQ(reader.values()[1], CsvValue(std::int64_t{8}));
  EXPECT_EQ(reader.values()[2], CsvValue(std::numeric_limits<float>::infinity()));
  EXPECT_TRUE(std::signbit(std::get<double>(reader.values()[3])));
  EXPECT_EQ(reader.values()[4], CsvValue(std::string_view(" y")));
}

TEST(CsvValues, AreStrict) {
  for (const char* text : {"", " ", "1x", "x1", "1 2", "0x10", "--1", "+-1", "1e400", "2147483648000000000000"}) {
    EXPECT_FALSE(csv_value(text, CsvType::Int32)) << text;
    if (text[0] == '2') continue;
    EXPECT_FALSE(csv_value(text, CsvType::Float64)) << text;
  }
  EXPECT_FALSE(csv_value("1.5", CsvType::Int64));
  EXPECT_FALSE(csv_value("2147483648", CsvType::Int32));
  EXPECT_TRUE(std::isnan(std::get<float>(*csv_value("nan", CsvType::Float32))));
}

TEST(CsvValues, RoundWhatIsTooSmallToZeroAndRefuseWhatIsTooLarge) {
  const std::string zeros(400, '0');
  for (const std::string& tiny : {std::string("1e-400"), std::string("1E-99999999999999999999"), "0." + zeros + "1",
                                  "1" + zeros + "e-900", std::string("123.456e-600")}) {
    for (const std::string sign : {"", "-"}) {
      const auto wide = csv_value(sign + tiny, CsvType::Float64);
      const auto narrow = csv_value(sign + tiny, CsvType::Float32);
      ASSERT_TRUE(wide && narrow) << tiny;
      EXPECT_EQ(std::get<double>(*wide), 0.0) << tiny;
      EXPECT_EQ(std::get<float>(*narrow), 0.0F) << tiny;
      EXPECT_EQ(std::signbit(std::get<double>(*wide)), sign == "-") << tiny;
      EXPECT_EQ(std::signbit(std::get<float>(*narrow)), sign == "-") << tiny;
    }
  }
  EXPECT_EQ(csv_value("1e-50", CsvType::Float32), CsvValue(0.0F));
  EXPECT_EQ(csv_value("1e-50", CsvType::Float64), CsvValue(1e-50));
  EXPECT_EQ(csv_value("0e999", CsvType::Float64), CsvValue(0.0));
  EXPECT_FALSE(csv_value("1e-400x", CsvType::Float64)) << "text follows the number";
  for (const std::string& huge : {std::string("1e400"), std::string("-1e400"), std::string("1e+99999999999999999999"),
                                  "1" + zeros, "0." + zeros + "1e900", std::string("123.456e307")}) {
    EXPECT_FALSE(csv_value(huge, CsvType::Float64)) << huge;
    EXPECT_FALSE(csv_value(huge, CsvType::Float32)) << huge;
  }
  EXPECT_FALSE(csv_value("1e39", CsvType::Float32));
  EXPECT_EQ(csv_value("1e39", CsvType::Float64), CsvValue(1e39));
}

TEST(Csv, SelectsColumnsByNameAndIndex) {
  const std::string_view text = "id,age,name\n1,30,Ann\n2,40,Bob\n";
  auto by_name = over(text, {.columns = {{CsvType::String, "name"}, {CsvType::Int32, "id"}}});
  EXPECT_EQ(by_name.columns()[0].index, 2);
  EXPECT_EQ(read_all(by_name), (Rows{{"Ann", "1"}, {"Bob", "2"}}));
  auto by_index = over(text, {.columns = {{.type = CsvType::Float64, .index = 1}}});
  EXPECT_EQ(by_index.columns()[0].name, "age");
  EXPECT_EQ(read_all(by_index), (Rows{{"30"}, {"40"}}));
  auto all = over(text);
  EXPECT_EQ(read_all(all), (Rows{{"1", "30", "Ann"}, {"2", "40", "Bob"}}));
}

TEST(Csv, FillsInDefaults) {
  auto reader = over("a,b,c\n,NA,\n1,2,x\n", {.columns = {{.type = CsvType::Int32, .default_value = "-1"},
                                                          {.type = CsvType::Float32, .default_value = "0.5"},
                                                          {.type = CsvType::String, .default_value = "none"}},
                                              .na_value = "NA"});
  EXPECT_EQ(read_all(reader), (Rows{{"-1", "0.5", "none"}, {"1", "2", "x"}}));
}

TEST(Csv, SkipsAndComesBackToAPosition) {
  const TemporaryFolder folder;
  std::string text = "a,b\n";
  Rows rows;
  for (int i = 0; i < 50; ++i) {
    text += std::to_string(i) + ",\"x\n\"\"" + std::string(static_cast<std::size_t>(i), 'y') + "\"\n";
    rows.push_back({std::to_string(i), "x\n\"" + std::string(static_cast<std::size_t>(i), 'y')});
  }
  for (const Compression compression : {Compression::None, Compression::Gzip}) {
    ByteWriter writer(folder / "f", compression);
    writer.append(text);
    writer.close();
    for (const std::uint64_t start : {0, 1, 25, 49, 50}) {
      CsvReader reader(folder / "f", {.compression = compression, .buffer_bytes = 64});
      EXPECT_EQ(reader.skip(start), start);
      const RecordPosition position = reader.position();
      EXPECT_EQ(position.record, start);
      EXPECT_EQ(position.line, 1 + 2 * start);
      const Rows rest(rows.begin() + static_cast<std::ptrdiff_t>(start), rows.end());
      EXPECT_EQ(read_all(reader), rest);
      CsvReader other(folder / "f", {.compression = compression});
      other.restore(position);
      EXPECT_EQ(read_all(other), rest);
      EXPECT_EQ(other.skip(1), 0u);
    }
  }
}

TEST(Csv, TellsBrokenRecordsWithFileRecordLineColumnAndByte) {
  struct Case {
    const char* name;
    std::string text;
    Code code;
    std::vector<std::string> fragments;
  };
  const std::vector<Case> table{
      {"quote inside",
       "a,b\n1,2\n3,x\"y\n",
       Code::DataLoss,
       {"a quote inside a field", "column 1, record 1 (line 3) at byte 11 of m"}},
      {"open quote",
       "a,b\n1,2\n\"3,4\n",
       Code::DataLoss,
       {"does not close", "column 0, record 1 (line 3) at byte 8 of m"}},
      {"text behind quote", "a,b\n1,2\n3,\"4\"5\n", Code::DataLoss, {"text behind a closing quote", "at byte 13"}},
      {"carriage return inside",
       "a,b\n1,2\n3\r,4\n",
       Code::DataLoss,
       {"carriage return", "record 1 (line 3) at byte 9"}},
      {"too few fields",
       "a,b\n1,2\n3\n",
       Code::DataLoss,
       {"1 field, the first record has 2", "record 1 (line 3) at byte 8 of m"}},
      {"too many fields", "a,b\n1,2\n3,4,5\n", Code::DataLoss, {"3 fields, the first record has 2", "'3,4,5\\n'"}},
      {"no number",
       "a,b\n1,2\n3,four\n",
       Code::InvalidArgument,
       {"is not of type int32", "column 1 'b', record 1 (line 3) at byte 10 of m", "'four'"}},
      {"too large", "a,b\n1,2\n3,3000000000\n", Code::InvalidArgument, {"is not of type int32", "'3000000000'"}},
      {"missing",
       "a,b\n1,2\n,4\n",
       Code::InvalidArgument,
       {"is missing and has no default", "column 0 'a', record 1 (line 3) at byte 8"}},
      {"lines in quotes count", "\"a\n\n\",b\n1,2\n3,\n", Code::InvalidArgument, {"record 1 (line 5) at byte 14 of m"}},
  };
  for (const Case& c : table) {
    for (const std::size_t buffer : {1, 4096}) {
      auto reader = over(c.text, {.columns = {{CsvType::Int32}, {CsvType::Int32}}, .buffer_bytes = buffer});
      ASSERT_TRUE(reader.next()) << c.name;
      expect_error([&] { reader.next(); }, c.code, errors::kCsv, c.fragments, c.name);
    }
  }
  auto reader = over("a,b\n1,2\n3,1e400\n", {.columns = {{CsvType::Float32}, {CsvType::Float64}}});
  ASSERT_TRUE(reader.next());
  expect_error([&] { reader.next(); }, Code::InvalidArgument, errors::kCsv,
               {"is not of type float64", "column 1 'b', record 1 (line 3) at byte 10 of m", "'1e400'"});
}

// As TensorFlow's CsvDataset treats a quote in an unquoted field: the record is an error, the next line is read.
TEST(Csv, GoesOnBehindTheLineOfABrokenRecord) {
  struct Case {
    const char* name;
    std::string text;
    std::string places;  ///< the first field of each record, "!" where it failed
    std::uint64_t last_line;
  };
  const std::vector<Case> table{
      {"quote inside", "1,2\nx\"y,3\n4,5\n", "1!4", 3},
      {"quote inside of the last field", "1,2\n3,x\"y\r\n4,5\n", "1!4", 3},
      {"quotes in two lines", "1,2\nx\"y\nz\",3\n4,5\n", "1!!4", 4},
      {"text behind a quote", "1,2\n\"x\"y,3\n4,5\n", "1!4", 3},
      {"text behind a quote with line ends", "1,2\n\"x\n\n\"y,3\n4,5\n", "1!4", 5},
      {"carriage return inside", "1,2\na\rb,3\n4,5\n", "1!4", 3},
      {"at the end", "1,2\nx\"y,3", "1!", 1},
      {"at the beginning", "x\"y,3\n4,5\n", "!4", 2},
      {"another number of fields", "1,2\n3\n4,5,6\n7,8\n", "1!!7", 4},
      {"a quote that does not close", "1,2\nx\"y,3\n\"4,5\n6,7\n", "1!!", 2},
      {"nothing but broken records", "a\"\nb\"\n", "!!", 2},
      {"a long broken line", "1,2\nx\"" + std::string(5000, 'y') + "\n4,5\n", "1!4", 3},
  };
  for (const Case& c : table) {
    for (const std::size_t buffer : {1, 3, 4096}) {
      for (const bool skips : {false, true}) {
        auto reader = over(c.text, {.header = false, .buffer_bytes = buffer});
        std::string places;
        for (bool goes_on = true; goes_on && places.size() < 100;) {
          try {
            goes_on = skips ? reader.skip(1) == 1 : reader.next();
            if (goes_on)
              places += skips ? std::string(1, c.places[places.size()])
                              : std::string(std::get<std::string_view>(reader.values()[0]));
          } catch (const DataLoss& error) {
            EXPECT_EQ(error.number(), errors::kCsv);
            const bool only_counts = skips && c.places[places.size()] != '!';
            EXPECT_FALSE(only_counts) << c.name << "\n" << error.what();
            places += '!';
            goes_on = reader.pass_over();
          }
        }
        // Skipping records does not count their fields.
        if (!skips || std::string_view(c.name) != "another number of fields") {
          EXPECT_EQ(places, c.places) << c.name << " through " << buffer << (skips ? ", skipping" : "");
        }
        EXPECT_EQ(reader.position().line, c.last_line) << c.name << " through " << buffer;
      }
    }
  }
  auto reader = over("a,b\n1,2\nx\"y,3\n4,five\n", {.columns = {{CsvType::Int32}, {CsvType::Int32}}});
  ASSERT_TRUE(reader.next());
  EXPECT_THROW(reader.next(), DataLoss);
  ASSERT_TRUE(reader.pass_over());
  expect_error([&] { reader.next(); }, Code::InvalidArgument, errors::kCsv, {"record 2 (line 4) at byte 16 of m"});
}

TEST(Csv, TellsColumnsThatAreNotThere) {
  expect_error(
      [] {
        over("a,b\n", {.columns = {{CsvType::Int32, "c"}}});
      },
      Code::InvalidArgument, errors::kCsv, {"no column 'c'", "'a', 'b'"});
  expect_error([] { over("a,b\n", {.columns = {{.index = 2}}}); }, Code::InvalidArgument, errors::kCsv,
               {"no column 2", "2 fields"});
  expect_error([] { over("a\n", {.columns = {{.type = CsvType::Int32, .default_value = "x"}}}); },
               Code::InvalidArgument, errors::kCsv, {"default of column 0 must be of type int32", "'x'"});
  expect_error([] { over(""); }, Code::DataLoss, errors::kCsv, {"no header"});
  expect_error([] { over("a", {.delimiter = '\n'}); }, Code::InvalidArgument, errors::kBadOption, {"line end"});
  expect_error(
      [] {
        require_valid(CsvOptions{.columns = {{}, {CsvType::Int64, "age", -1, "old"}}});
      },
      Code::InvalidArgument, errors::kCsv, {"default of column 1 'age' must be of type int64", "'old'"});
}

TEST(Csv, BoundsTheSizeOfARecord) {
  const std::string text = "a\n\"" + std::string(10000, 'x') + "\"\n";
  auto reader = over(text, {.max_record_bytes = 1000, .buffer_bytes = 16});
  expect_error([&] { reader.next(); }, Code::DataLoss, errors::kCsv,
               {"too long", "max_record_bytes = 1000", "record 0"});
  auto wider = over(text, {.max_record_bytes = 20000, .buffer_bytes = 16});
  EXPECT_TRUE(wider.next());
}

TEST(Csv, NamesTheRecordWhereCompressionBreaks) {
  const TemporaryFolder folder;
  {
    ByteWriter writer(folder / "f", Compression::Gzip, 0);
    for (int i = 0; i < 1000; ++i) writer.append("12,34\n");
  }
  const std::string bytes = file_content(folder / "f");
  auto reader = over(std::string_view(bytes).substr(0, 3000),
                     {.header = false, .compression = Compression::Gzip, .buffer_bytes = 32});
  expect_error(
      [&] {
        while (reader.next()) continue;
      },
      Code::DataLoss, errors::kCompression, {"record 49", "of m"});
}

}  // namespace
}  // namespace lockstep::data
