#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/data/format/byte_writer.h"
#include "lockstep/data/format/fixed_length.h"
#include "lockstep/data/format/list_files.h"
#include "lockstep/data/format/text_lines.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::data {
namespace {

using Strings = std::vector<std::string>;

Strings lines_of(TextLineReader& reader) {
  Strings lines;
  while (reader.next()) lines.emplace_back(reader.record());
  return lines;
}

Strings records_of(FixedLengthReader& reader) {
  Strings records;
  while (reader.next()) records.emplace_back(reader.record());
  return records;
}

std::string written(const TemporaryFolder& folder, std::string_view bytes, Compression compression) {
  ByteWriter writer(folder / "w", compression);
  writer.append(bytes);
  writer.close();
  return folder / "w";
}

// As TensorFlow 2.20 reads them.
TEST(TextLines, AreThoseOfTensorFlow) {
  struct Case {
    std::string text;
    Strings lines;
  };
  const std::vector<Case> table{
      {"", {}},
      {"a", {"a"}},
      {"a\n", {"a"}},
      {"a\nb", {"a", "b"}},
      {"a\r\nb\r\n", {"a", "b"}},
      {"\n\n", {"", ""}},
      {"\r\n", {""}},
      {"a\rb\n", {"ab"}},
      {"a\rb\rc", {"abc"}},
      {"a\r\r\r\nb", {"a", "b"}},
      {"a\r", {"a"}},
      {"\r", {}},
      {"x\r\n\r", {"x"}},
      {"one\r\ntwo\n\r\n\nfive\r\r\nlast\r", {"one", "two", "", "", "five", "last"}},
      {std::string("a\0b\n", 4), {std::string("a\0b", 3)}},
      {std::string(5000, 'x') + "\n" + std::string(7000, 'y'), {std::string(5000, 'x'), std::string(7000, 'y')}},
  };
  for (const Case& c : table) {
    for (const std::size_t buffer : {1, 3, 4096}) {
      const TextLineOptions options{.buffer_bytes = buffer};
      TextLineReader reader(ByteReader::over_memory("m", c.text, Compression::None, buffer), options);
      EXPECT_EQ(lines_of(reader), c.lines) << c.text.substr(0, 20) << " through " << buffer;
    }
  }
}

TEST(TextLines, SkipAndComeBackToAPosition) {
  const TemporaryFolder folder;
  Strings lines;
  std::string text;
  for (int i = 0; i < 100; ++i) text += lines.emplace_back(std::string(static_cast<std::size_t>(i), 'a')) + "\n";
  for (const Compression compression : {Compression::None, Compression::Zlib, Compression::Gzip}) {
    const std::string path = written(folder, text, compression);
    TextLineReader reader(path, {.compression = compression, .buffer_bytes = 50});
    EXPECT_EQ(reader.skip(40), 40u);
    const RecordPosition position = reader.position();
    const Strings rest(lines.begin() + 40, lines.end());
    EXPECT_EQ(lines_of(reader), rest);
    reader.restore(position);
    EXPECT_EQ(reader.position(), position);
    EXPECT_EQ(lines_of(reader), rest);
    EXPECT_EQ(reader.skip(1), 0u);
  }
}

TEST(TextLines, TellLinesThatAreTooLongAndBrokenCompression) {
  const std::string text = "short\n" + std::string(1000, 'x') + "\n";
  const TextLineOptions options{.max_line_bytes = 999, .buffer_bytes = 10};
  TextLineReader reader(ByteReader::over_memory("m", text, Compression::None, 10), options);
  ASSERT_TRUE(reader.next());
  expect_error([&] { reader.next(); }, Code::DataLoss, errors::kRecord,
               {"more than 999 bytes", "max_line_bytes = 999", "record 1 at byte 6 of m"});
  TextLineReader broken(ByteReader::over_memory("z", "no zlib", Compression::Zlib), {.compression = Compression::Zlib});
  expect_error([&] { broken.next(); }, Code::DataLoss, errors::kCompression, {"record 0 at byte 0 of z"});
}

TEST(FixedLength, LeavesHeaderAndFooterOut) {
  const TemporaryFolder folder;
  for (const Compression compression : {Compression::None, Compression::Gzip}) {
    const std::string path = written(folder, "HHaaabbbcccF", compression);
    for (const std::size_t buffer : {1, 4, 4096}) {
      const FixedLengthOptions options{
          .record_bytes = 3, .header_bytes = 2, .footer_bytes = 1, .compression = compression, .buffer_bytes = buffer};
      FixedLengthReader reader(path, options);
      EXPECT_EQ(records_of(reader), (Strings{"aaa", "bbb", "ccc"}));
      EXPECT_FALSE(reader.next());
      FixedLengthReader other(path, options);
      EXPECT_EQ(other.skip(1), 1u);
      const RecordPosition position = other.position();
      EXPECT_EQ(position, (RecordPosition{1, 5, 0}));
      EXPECT_EQ(records_of(other), (Strings{"bbb", "ccc"}));
      reader.restore(position);
      EXPECT_EQ(records_of(reader), (Strings{"bbb", "ccc"}));
      other.restore(position);
      EXPECT_EQ(other.skip(10), 2u);
      EXPECT_FALSE(other.next());
    }
  }
}

TEST(FixedLength, TellsFilesThatHoldNoWholeNumberOfRecords) {
  struct Case {
    const char* name;
    std::string bytes;
    std::uint64_t header, footer;
    const char* place;
  };
  const std::vector<Case> table{
      {"a byte more", "aaabbbc", 0, 0, "record 2 at byte 6"},
      {"a byte less", "aaabb", 0, 0, "record 1 at byte 3"},
      {"no header", "a", 2, 0, "record 0 at byte "},
      {"no footer", "HHF", 2, 2, "record 0 at byte 2"},
      {"half a footer", "aaabbbF", 0, 2, "record 1 at byte 3"},
  };
  const TemporaryFolder folder;
  for (const Case& c : table) {
    for (const Compression compression : {Compression::None, Compression::Gzip}) {
      const std::string path = written(folder, c.bytes, compression);
      const FixedLengthOptions options{
          .record_bytes = 3, .header_bytes = c.header, .footer_bytes = c.footer, .compression = compression};
      expect_error(
          [&] {
            FixedLengthReader reader(path, options);
            records_of(reader);
          },
          Code::DataLoss, errors::kRecord, {c.place, path}, c.name);
    }
  }
  expect_error([&] { FixedLengthReader reader(folder / "w", {}); }, Code::InvalidArgument, errors::kBadOption,
               {"record_bytes = 0"});
}

TEST(FixedLength, ReadsAnEmptyFileAsNoRecords) {
  FixedLengthReader reader(ByteReader::over_memory("m", ""), {.record_bytes = 3});
  EXPECT_FALSE(reader.next());
}

TEST(MatchingFiles, AreSortedAndEachOnce) {
  const TemporaryFolder folder;
  for (const char* name : {"b-1", "a-10", "a-2", "a-1", "other"}) folder.file(name, "x");
  std::filesystem::create_directory(folder / "a-folder");
  EXPECT_EQ(matching_files({folder / "a-*"}), (Strings{folder / "a-1", folder / "a-10", folder / "a-2"}));
  EXPECT_EQ(matching_files({folder / "b-?", folder / "[ab]-1"}), (Strings{folder / "a-1", folder / "b-1"}));
  EXPECT_EQ(matching_files({folder / "other"}), (Strings{folder / "other"}));
}

TEST(MatchingFiles, TellsPatternsThatMatchNothing) {
  const TemporaryFolder folder;
  folder.file("a", "x");
  std::filesystem::create_directory(folder / "folder");
  expect_error(
      [&] {
        matching_files({folder / "a", folder / "b*"});
      },
      Code::NotFound, errors::kNoFiles, {"no file matches", "b*"});
  expect_error([&] { matching_files({folder / "folder"}); }, Code::NotFound, errors::kNoFiles, {"no file matches"});
  expect_error([] { matching_files({}); }, Code::NotFound, errors::kNoFiles, {"no pattern"});
}

}  // namespace
}  // namespace lockstep::data
