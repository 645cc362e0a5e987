#include "lockstep/data/format/tfrecord.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "tests/support/expect_error.h"
#include "tests/support/hex.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::data {
namespace {

using Strings = std::vector<std::string>;

constexpr std::string_view kHello = "0500000000000000 eab2043e 68656c6c6f bb1f1c19";
constexpr std::string_view kEmpty = "0000000000000000 29039807 d8ea82a2";

// Written by TensorFlow 2.20: the records "hello" and "".
constexpr std::string_view kZlibFile = "789c63658080579b58ec32527372f277cbcb4842c518349967b0df78d5b4080086a508b8";
constexpr std::string_view kGzipFile =
    "1f8b080000000000000363658080579b58ec32527372f277cbcb4842c518349967b0df78d5b40800b3afd7f825000000";

std::string framed(std::string_view record) {
  const TemporaryFolder folder;
  TFRecordWriter writer(folder / "f");
  writer.write(record);
  writer.close();
  return file_content(folder / "f");
}

// A header that claims any length, with a right checksum.
std::string header_of(std::uint64_t length) {
  std::string header(12, '\0');
  std::memcpy(header.data(), &length, 8);
  const std::uint32_t crc = mask_crc32c(crc32c({header.data(), 8}));
  std::memcpy(header.data() + 8, &crc, 4);
  return header;
}

TFRecordReader over(std::string_view bytes, const TFRecordOptions& options = {}) {
  return {ByteReader::over_memory("m", bytes, options.compression, options.buffer_bytes), options};
}

Strings read_all(TFRecordReader& reader) {
  Strings records;
  while (reader.next()) records.emplace_back(reader.record());
  return records;
}

Strings many_records(int count) {
  Strings records;
  for (int i = 0; i < count; ++i)
    records.push_back(std::string(static_cast<std::size_t>(i * 37 % 400), static_cast<char>(i)));
  return records;
}

TEST(TFRecordWriter, WritesTheKnownBytes) {
  EXPECT_EQ(framed("hello"), from_hex(kHello));
  EXPECT_EQ(framed(""), from_hex(kEmpty));
}

TEST(TFRecordReader, ReadsFilesOfTensorFlow) {
  const std::string plain = from_hex(kHello) + from_hex(kEmpty);
  const std::string zlib = from_hex(kZlibFile);
  const std::string gzip = from_hex(kGzipFile);
  auto plain_reader = over(plain);
  auto zlib_reader = over(zlib, {.compression = Compression::Zlib});
  auto gzip_reader = over(gzip, {.compression = Compression::Gzip});
  for (TFRecordReader* reader : {&plain_reader, &zlib_reader, &gzip_reader}) {
    EXPECT_EQ(read_all(*reader), (Strings{"hello", ""}));
    EXPECT_FALSE(reader->next());
  }
}

TEST(TFRecordReader, GivesBackWhatTheWriterGotThroughAnyBuffer) {
  const TemporaryFolder folder;
  Strings records = many_records(300);
  records.push_back(std::string(100000, 'x'));
  records.emplace_back("last");
  for (const Compression compression : {Compression::None, Compression::Zlib, Compression::Gzip}) {
    TFRecordWriter writer(folder / "f", compression);
    for (const auto& record : records) writer.write(record);
    EXPECT_EQ(writer.records(), records.size());
    writer.close();
    for (const std::size_t buffer : {1, 13, 1000, 1 << 20}) {
      TFRecordReader reader(folder / "f", {.compression = compression, .buffer_bytes = buffer});
      EXPECT_EQ(read_all(reader), records);
    }
  }
}

TEST(TFRecordReader, SaysWhereEachRecordStands) {
  const std::string bytes = from_hex(kHello) + from_hex(kEmpty) + from_hex(kHello);
  auto reader = over(bytes);
  for (const RecordPosition expected : {RecordPosition{0, 0}, RecordPosition{1, 21}, RecordPosition{2, 37}}) {
    EXPECT_EQ(reader.position(), expected);
    ASSERT_TRUE(reader.next());
    EXPECT_EQ(reader.record_position(), expected);
  }
  EXPECT_EQ(reader.position(), (RecordPosition{3, 58}));
}

TEST(TFRecordReader, SkipsRecordsAndComesBackToAPosition) {
  const TemporaryFolder folder;
  const Strings records = many_records(100);
  for (const Compression compression : {Compression::None, Compression::Gzip}) {
    TFRecordWriter writer(folder / "f", compression);
    for (const auto& record : records) writer.write(record);
    writer.close();
    const TFRecordOptions options{.compression = compression, .buffer_bytes = 500};
    for (const std::uint64_t start : {0, 1, 2, 50, 99, 100}) {
      TFRecordReader reader(folder / "f", options);
      EXPECT_EQ(reader.skip(start), start);
      const RecordPosition position = reader.position();
      EXPECT_EQ(position.record, start);
      const Strings rest(records.begin() + static_cast<std::ptrdiff_t>(start), records.end());
      EXPECT_EQ(read_all(reader), rest);
      reader.restore(position);
      EXPECT_EQ(read_all(reader), rest);
      TFRecordReader other(folder / "f", options);
      other.restore(position);
      EXPECT_EQ(read_all(other), rest);
      EXPECT_EQ(other.skip(5), 0u);
    }
    TFRecordReader reader(folder / "f", options);
    EXPECT_EQ(reader.skip(1000), 100u);
  }
}

TEST(TFRecordReader, SkipDoesNotReadPayloads) {
  std::string bytes = from_hex(kHello) + from_hex(kHello);
  bytes[14] ^= 1;
  auto reader = over(bytes);
  EXPECT_EQ(reader.skip(1), 1u);
  EXPECT_EQ(read_all(reader), Strings{"hello"});
}

TEST(TFRecordReader, TellsDamageWithFileRecordAndOffset) {
  const std::string good = from_hex(kHello);
  const auto flipped = [&](std::size_t byte) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ 0x10);
    return good + bad + good;
  };
  struct Case {
    const char* name;
    std::string bytes;
    std::vector<std::string> fragments;
  };
  const std::vector<Case> table{
      {"length", flipped(0), {"checksum of its length"}},
      {"high byte of length", flipped(7), {"checksum of its length"}},
      {"length's sum", flipped(8), {"checksum of its length", "header 0500000000000000fab2043e"}},
      {"payload", flipped(14), {"checksum of its bytes", "5 bytes"}},
      {"payload's sum", flipped(20), {"checksum of its bytes"}},
      {"cut in header", good + good.substr(0, 1), {"ends inside a record's header", "1 byte of 12: 05"}},
      {"cut after header", good + good.substr(0, 12), {"longer than it can be", "length 5", "has 12 bytes"}},
      {"cut in payload", good + good.substr(0, 14), {"longer than it can be", "has 14 bytes"}},
      {"cut in payload's sum", good + good.substr(0, 20), {"longer than it can be", "has 20 bytes"}},
      {"length 2^60", good + header_of(std::uint64_t{1} << 60) + good, {"length 1152921504606846976"}},
      {"length 2^64 - 1", good + header_of(~std::uint64_t{0}) + good, {"length 18446744073709551615"}},
      {"length 2^64 - 16", good + header_of(~std::uint64_t{15}) + good, {"longer than it can be"}},
      {"one byte more than there is", good + header_of(22) + good, {"length 22", "has 33 bytes"}},
      {"another file", good + std::string("this is a text file, not records"), {"checksum of its length"}},
      {"zeros", good + std::string(100, '\0'), {"checksum of its length", "header 000000000000000000000000"}},
  };
  for (const Case& c : table) {
    auto fragments = c.fragments;
    fragments.insert(fragments.end(), {"m holds a damaged record", "record 1 at byte 21 of m"});
    for (const std::size_t buffer : {1, 30, 4096}) {
      auto reader = over(c.bytes, {.buffer_bytes = buffer});
      ASSERT_TRUE(reader.next());
      expect_error([&] { reader.next(); }, Code::DataLoss, errors::kRecord, fragments, c.name);
      EXPECT_THROW(reader.next(), DataLoss) << "a second look must not go past the damage: " << c.name;
    }
  }
}

TEST(TFRecordReader, BoundsLengthsInCompressedFilesByTheMaximum) {
  const TemporaryFolder folder;
  ByteWriter writer(folder / "f", Compression::Gzip);
  writer.append(from_hex(kHello) + header_of(1000) + std::string(500, 'x'));
  writer.close();
  TFRecordReader reader(folder / "f", {.compression = Compression::Gzip, .max_record_bytes = 999});
  ASSERT_TRUE(reader.next());
  expect_error([&] { reader.next(); }, Code::DataLoss, errors::kRecord,
               {"length 1000", "max_record_bytes = 999", "record 1 at byte 21"});
  TFRecordReader wider(folder / "f", {.compression = Compression::Gzip, .max_record_bytes = 1000});
  ASSERT_TRUE(wider.next());
  expect_error([&] { wider.next(); }, Code::DataLoss, errors::kRecord, {"ends inside it", "500 bytes are left"});
  wider.restore({1, 21});
  expect_error([&] { wider.skip(1); }, Code::DataLoss, errors::kRecord, {"ends inside it"});
}

TEST(TFRecordReader, NamesTheRecordWhereCompressionBreaks) {
  const std::string gzip = from_hex(kGzipFile);
  auto reader = over(std::string_view(gzip).substr(0, gzip.size() - 20), {.compression = Compression::Gzip});
  expect_error([&] { read_all(reader); }, Code::DataLoss, errors::kCompression,
               {"m holds damaged GZIP", "of m, record "});
}

TEST(TFRecordReader, LeavesDamagedPayloadsOutIfAsked) {
  std::string bytes = from_hex(kHello) + framed("damaged") + framed("third");
  bytes[21 + 13] ^= 1;
  auto reader = over(bytes, {.on_damage = OnDamage::Skip, .buffer_bytes = 10});
  EXPECT_EQ(read_all(reader), (Strings{"hello", "third"}));
  EXPECT_EQ(reader.damaged(), 1u);
  EXPECT_NE(reader.last_damage().find("record 1 at byte 21 of m"), std::string::npos) << reader.last_damage();
  reader.restore({0, 0});
  EXPECT_EQ(reader.skip(2), 2u) << "only whole records count";
  EXPECT_FALSE(reader.next());
}

TEST(TFRecordReader, FindsTheNextRecordBehindADamagedLength) {
  const std::string third = framed("third");
  for (std::size_t byte = 0; byte < 12; ++byte) {
    std::string damaged = framed("damaged");
    damaged[byte] = static_cast<char>(damaged[byte] ^ 0x40);
    const std::string bytes = from_hex(kHello) + damaged + third + from_hex(kEmpty);
    for (const std::size_t buffer : {1, 16, 4096}) {
      auto reader = over(bytes, {.on_damage = OnDamage::Skip, .buffer_bytes = buffer});
      EXPECT_EQ(read_all(reader), (Strings{"hello", "third", ""})) << byte;
      EXPECT_EQ(reader.damaged(), 1u);
    }
  }
}

TEST(TFRecordReader, LeavesOutATornTail) {
  const std::string whole = from_hex(kHello) + framed("the last one");
  for (std::size_t size = 22; size < whole.size(); ++size) {
    auto reader = over(std::string_view(whole).substr(0, size), {.on_damage = OnDamage::Skip});
    EXPECT_EQ(read_all(reader), Strings{"hello"}) << size;
    EXPECT_EQ(reader.damaged(), 1u);
  }
}

TEST(TFRecordReader, ReadsAnEmptyFileAsNoRecords) {
  const TemporaryFolder folder;
  TFRecordReader reader(folder.file("f", ""));
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(reader.skip(3), 0u);
}

}  // namespace
}  // namespace lockstep::data
