#include "lockstep/data/format/byte_reader.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "lockstep/data/format/byte_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/hex.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::data {
namespace {

constexpr std::array kAll{Compression::None, Compression::Zlib, Compression::Gzip};

std::string pattern(std::size_t size) {
  std::string bytes(size, '\0');
  std::uint32_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525U + 1013904223U) >> 29);
  return bytes;
}

std::string read_all(ByteReader& reader, std::size_t step) {
  std::string out;
  for (;;) {
    const std::string_view bytes = reader.peek(step).substr(0, step);
    if (bytes.empty()) return out;
    out += bytes;
    reader.consume(bytes.size());
  }
}

std::string compressed(const TemporaryFolder& folder, std::string_view bytes, Compression compression) {
  ByteWriter writer(folder / "c", compression);
  writer.append(bytes);
  writer.close();
  return file_content(folder / "c");
}

TEST(ByteReader, GivesBackWhatTheWriterGot) {
  const TemporaryFolder folder;
  for (const Compression compression : kAll) {
    for (const std::size_t size : {0, 1, 100, 65535, 65536, 700001}) {
      const std::string bytes = pattern(size);
      {
        ByteWriter writer(folder / "f", compression);
        for (std::size_t at = 0; at < size; at += 1000) writer.append(std::string_view(bytes).substr(at, 1000));
      }
      for (const std::size_t buffer : {1, 7, 4096, 1 << 20}) {
        if (buffer < 100 && size > 100) continue;
        ByteReader reader(folder / "f", compression, buffer);
        EXPECT_EQ(read_all(reader, 999), bytes) << to_string(compression) << ' ' << size << ' ' << buffer;
        EXPECT_EQ(reader.offset(), size);
      }
    }
  }
}

TEST(ByteReader, PeeksAsFarAsWantedAcrossItsBuffer) {
  const std::string bytes = pattern(5000);
  auto reader = ByteReader::over_memory("m", bytes, Compression::None, 16);
  EXPECT_EQ(reader.peek(10).substr(0, 10), bytes.substr(0, 10));
  reader.consume(3);
  EXPECT_EQ(reader.peek(4000).substr(0, 4000), bytes.substr(3, 4000));
  EXPECT_EQ(reader.peek(100000), bytes.substr(3));
  EXPECT_EQ(reader.offset(), 3u);
}

TEST(ByteReader, SkipsAndSeeksToAnyPlace) {
  const TemporaryFolder folder;
  const std::string bytes = pattern(300000);
  for (const Compression compression : kAll) {
    folder.file("f", compressed(folder, bytes, compression));
    ByteReader reader(folder / "f", compression, 1000);
    for (const std::uint64_t place : {5, 0, 999, 1001, 299999, 7, 150000, 150001, 149999, 300000}) {
      reader.seek(place);
      EXPECT_EQ(reader.offset(), place);
      EXPECT_EQ(reader.peek(1).substr(0, 1), bytes.substr(place, 1)) << to_string(compression) << ' ' << place;
    }
    reader.seek(10);
    EXPECT_EQ(reader.skip(290000), 290000u);
    EXPECT_EQ(reader.skip(1000000), 9990u);
    EXPECT_EQ(reader.skip(1), 0u);
    expect_error([&] { reader.seek(300001); }, Code::OutOfRange, errors::kRecord,
                 {"byte 300001", "ends at byte 300000"});
  }
}

TEST(ByteReader, KnowsTheRestOnlyOfPlainFiles) {
  const TemporaryFolder folder;
  ByteReader plain(folder.file("p", "12345"));
  EXPECT_EQ(plain.remaining(), 5u);
  plain.skip(2);
  EXPECT_EQ(plain.remaining(), 3u);
  folder.file("z", compressed(folder, "12345", Compression::Zlib));
  EXPECT_EQ(ByteReader(folder / "z", Compression::Zlib).remaining(), std::nullopt);
}

TEST(ByteReader, ReadsGzipMembersAsOneFile) {
  const TemporaryFolder folder;
  const std::string both = compressed(folder, "first,", Compression::Gzip) + compressed(folder, "", Compression::Gzip) +
                           compressed(folder, "second", Compression::Gzip);
  for (const std::size_t buffer : {1, 3, 1000}) {
    auto reader = ByteReader::over_memory("m", both, Compression::Gzip, buffer);
    EXPECT_EQ(read_all(reader, 5), "first,second");
    reader.seek(4);
    EXPECT_EQ(read_all(reader, 5), "t,second");
  }
}

TEST(ByteReader, TellsDamagedCompressionWithItsPlace) {
  const TemporaryFolder folder;
  const std::string zlib = compressed(folder, pattern(3000), Compression::Zlib);
  const std::string gzip = compressed(folder, pattern(3000), Compression::Gzip);
  std::string wrong_sum = gzip;
  wrong_sum[wrong_sum.size() - 6] ^= 1;
  struct Case {
    const char* name;
    std::string bytes;
    Compression compression;
    std::vector<std::string> fragments;
  };
  const std::vector<Case> table{
      {"no bytes", "", Compression::Gzip, {"m holds damaged GZIP data: it ends too early", "byte 0 of m"}},
      {"plain text", "hello, this is no gzip", Compression::Gzip, {"incorrect header check", "of m"}},
      {"zlib as gzip", zlib, Compression::Gzip, {"incorrect header check"}},
      {"gzip as zlib", gzip, Compression::Zlib, {"incorrect header check"}},
      {"cut header", gzip.substr(0, 5), Compression::Gzip, {"ends too early", "byte 5 of m"}},
      {"cut body", zlib.substr(0, zlib.size() / 2), Compression::Zlib, {"ends too early"}},
      {"cut sum", gzip.substr(0, gzip.size() - 1), Compression::Gzip, {"ends too early"}},
      {"wrong sum", wrong_sum, Compression::Gzip, {"incorrect data check"}},
      {"zlib and more", zlib + "x", Compression::Zlib, {"more bytes follow its end"}},
      {"gzip and text", gzip + "text", Compression::Gzip, {"incorrect header check"}},
      {"dictionary", from_hex("78bb00000001"), Compression::Zlib, {"dictionary"}},
  };
  for (const Case& c : table) {
    auto reader = ByteReader::over_memory("m", c.bytes, c.compression);
    expect_error([&] { read_all(reader, 10000); }, Code::DataLoss, errors::kCompression, c.fragments, c.name);
  }
}

TEST(ByteReader, GivesAllBytesBeforeTheDamage) {
  const TemporaryFolder folder;
  const std::string whole = pattern(100000);
  const std::string gzip = compressed(folder, whole, Compression::Gzip);
  auto reader = ByteReader::over_memory("m", std::string_view(gzip).substr(0, gzip.size() - 4), Compression::Gzip, 64);
  std::string got;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    got += reader.peek(1)[0];
    reader.consume(1);
  }
  EXPECT_EQ(got, whole);
  EXPECT_THROW(reader.peek(1), DataLoss);
}

TEST(ByteReader, TellsFilesItCannotOpenOrRead) {
  const TemporaryFolder folder;
  expect_error([&] { ByteReader reader(folder / "none"); }, Code::NotFound, errors::kFile,
               {"cannot open " + folder / "none", "No such file"});
  ByteReader directory(folder / "");
  expect_error([&] { directory.peek(1); }, Code::FailedPrecondition, errors::kFile, {"cannot read", "directory"});
}

TEST(ByteWriter, TellsWhenTheDiskIsFull) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  ByteWriter writer("/dev/full");
  writer.append("x");
  expect_error([&] { writer.flush(); }, Code::ResourceExhausted, errors::kFile, {"cannot write to /dev/full"});
}

TEST(ByteWriter, TellsWrongUse) {
  const TemporaryFolder folder;
  expect_error([&] { ByteWriter writer(folder / "no/such"); }, Code::NotFound, errors::kFile, {"cannot create"});
  expect_error([&] { ByteWriter writer(folder / "f", Compression::Zlib, 10); }, Code::InvalidArgument,
               errors::kBadOption, {"compression level must be -1 to 9, got 10"});
  ByteWriter writer(folder / "f");
  writer.close();
  writer.close();
  expect_error([&] { writer.append("x"); }, Code::FailedPrecondition, errors::kFile, {"is closed"});
}

TEST(ByteWriter, FlushMakesBytesReadable) {
  const TemporaryFolder folder;
  for (const Compression compression : kAll) {
    ByteWriter writer(folder / "f", compression);
    writer.append("visible");
    writer.flush();
    ByteReader reader(folder / "f", compression);
    EXPECT_EQ(reader.peek(7), "visible");
    writer.append(", more");
    writer.close();
    ByteReader again(folder / "f", compression);
    EXPECT_EQ(read_all(again, 100), "visible, more");
  }
}

TEST(CompressionNames, AreThoseOfTensorFlow) {
  for (const Compression compression : kAll) EXPECT_EQ(compression_named(to_string(compression)), compression);
  EXPECT_EQ(compression_named("NONE"), Compression::None);
  expect_error([] { compression_named("ZSTD"); }, Code::InvalidArgument, errors::kBadOption, {"ZSTD"});
}

}  // namespace
}  // namespace lockstep::data
