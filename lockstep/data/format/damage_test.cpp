// Every file truncated anywhere and every file with one wrong byte, for each reader and each compression: the right
// records or a typed error naming the file, the record and the byte. Never other records if there is a checksum.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/data/format/byte_writer.h"
#include "lockstep/data/format/csv.h"
#include "lockstep/data/format/fixed_length.h"
#include "lockstep/data/format/text_lines.h"
#include "lockstep/data/format/tfrecord.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::data {
namespace {

using Records = std::vector<std::string>;

struct Format {
  std::string name;
  std::string bytes;  ///< the uncompressed file
  bool checked;       ///< has its own checksums
  /// Reads all records, or skips them.
  std::function<Records(std::string_view bytes, Compression compression, bool skips)> read;
};

template <class Reader, class Take>
Records all_of(Reader&& reader, bool skips, Take&& take) {
  Records records;
  while (skips ? reader.skip(1) == 1 : reader.next())
    records.emplace_back(skips ? std::string() : std::string(take(reader)));
  return records;
}

/// The first field of every whole record of a CSV file; broken records are skipped.
Records csv_records(std::string_view text) {
  Records records;
  std::optional<CsvReader> reader;
  try {
    reader.emplace(ByteReader::over_memory("some file", text, Compression::None, 8), CsvOptions{});
  } catch (const Error&) {
    return records;
  }
  for (std::size_t places = 0; places <= text.size(); ++places) {
    try {
      if (!reader->next()) return records;
      records.emplace_back(std::get<std::string_view>(reader->values()[0]));
    } catch (const DataLoss&) {
      if (!reader->pass_over()) return records;
    }
  }
  ADD_FAILURE() << "more places than bytes in " << text;
  return records;
}

ByteReader over(std::string_view bytes, Compression compression) {
  return ByteReader::over_memory("some file", bytes, compression, 64);
}

std::vector<Format> formats() {
  const TemporaryFolder folder;
  TFRecordWriter writer(folder / "r");
  for (const char* record : {"hello", "", "a third record"}) writer.write(record);
  writer.close();
  return {
      {"TFRecord", file_content(folder / "r"), true,
       [](std::string_view bytes, Compression compression, bool skips) {
         return all_of(TFRecordReader(over(bytes, compression), {.compression = compression}), skips,
                       [](auto& r) { return r.record(); });
       }},
      {"lines", "one\ntwo two\n\nthree\n", false,
       [](std::string_view bytes, Compression compression, bool skips) {
         return all_of(TextLineReader(over(bytes, compression), {.compression = compression}), skips,
                       [](auto& r) { return r.record(); });
       }},
      {"fixed", "HHaaabbbcccF", false,
       [](std::string_view bytes, Compression compression, bool skips) {
         const FixedLengthOptions options{
             .record_bytes = 3, .header_bytes = 2, .footer_bytes = 1, .compression = compression};
         return all_of(FixedLengthReader(over(bytes, compression), options), skips, [](auto& r) { return r.record(); });
       }},
      {"CSV", "id,x\n1,0.5\n2,\"1.5\"\n3,-2e3\n", false,
       [](std::string_view bytes, Compression compression, bool skips) {
         const CsvOptions options{.columns = {{CsvType::Int64}, {CsvType::Float64}}, .compression = compression};
         return all_of(CsvReader(over(bytes, compression), options), skips, [](auto& r) {
           return str(std::get<std::int64_t>(r.values()[0]), ' ', std::get<double>(r.values()[1]));
         });
       }},
  };
}

/// Reads the file; an error must be typed and name the place. Returns whether there was none.
bool reads(const Format& format, std::string_view bytes, Compression compression, const std::string& what,
           Records& records, bool skips = false) {
  try {
    records = format.read(bytes, compression, skips);
    return true;
  } catch (const DataLoss& error) {
    for (const std::string part : {"of some file", "record ", " at byte "}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << format.name << ", " << what << ": no '" << part << "' in\n"
          << error.what();
    }
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.number(), errors::kCsv) << format.name << ", " << what << ":\n" << error.what();
    for (const std::string part : {"of some file", "record ", "line ", " at byte "}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  return false;
}

TEST(Damage, IsToldWithItsPlaceByEveryReaderInEveryCompression) {
  const TemporaryFolder folder;
  for (const Format& format : formats()) {
    for (const Compression compression : {Compression::None, Compression::Zlib, Compression::Gzip}) {
      ByteWriter file(folder / "f", compression);
      file.append(format.bytes);
      file.close();
      const std::string whole = file_content(folder / "f");
      const Records expected = format.read(whole, compression, false);
      ASSERT_GE(expected.size(), 3u);
      const std::string name = str(to_string(compression), " file ");
      int told = 0;
      for (std::size_t size = 0; size < whole.size(); ++size) {
        const std::string_view part = std::string_view(whole).substr(0, size);
        Records records;
        const std::string what = str(name, "of ", size, " bytes");
        reads(format, part, compression, what + ", going past", records, true);
        const bool read = reads(format, part, compression, what, records);
        told += !read;
        if (compression != Compression::None) {
          EXPECT_FALSE(read) << format.name << ", " << what;
        } else if (read && format.checked) {
          EXPECT_EQ(records, Records(expected.begin(), expected.begin() + std::ssize(records)));
          EXPECT_LT(records.size(), expected.size());
        }
      }
      for (std::size_t byte = 0; byte < whole.size(); ++byte) {
        for (const int bit : {0, 3, 7}) {
          std::string wrong = whole;
          wrong[byte] = static_cast<char>(wrong[byte] ^ (1 << bit));
          Records records;
          const std::string what = str(name, "with bit ", bit, " of byte ", byte, " turned");
          reads(format, wrong, compression, what + ", going past", records, true);
          const bool read = reads(format, wrong, compression, what, records);
          told += !read;
          // A gzip header has fields that readers ignore.
          if (read && (format.checked || compression != Compression::None)) {
            EXPECT_EQ(records, expected) << format.name << ", " << what;
          }
        }
      }
      EXPECT_GT(told, format.name == "lines" && compression == Compression::None ? -1 : 5)
          << format.name << ", " << name;
    }
  }
}

TEST(Damage, OfOneCsvRecordLeavesTheOthers) {
  const std::string before = "id,x\nfirst,1\n", record = "second,2.5", behind = "\nthird,\"3\"\nlast,4\n";
  for (const char stray : {'"', '\r', ',', 'z', '\0'}) {
    for (std::size_t at = 0; at <= record.size(); ++at) {
      for (const bool replaces : {false, true}) {
        std::string damaged = record;
        if (replaces && at < record.size()) {
          damaged[at] = stray;
        } else {
          damaged.insert(at, 1, stray);
        }
        const Records records = csv_records(before + damaged + behind);
        ASSERT_FALSE(records.empty()) << damaged;
        EXPECT_EQ(records.front(), "first") << damaged;
        // A quote before a field has a meaning: what follows may belong to the field.
        if (stray == '"' && damaged.find(",\"") != std::string::npos) continue;
        if (stray == '"' && damaged.front() == '"') continue;
        ASSERT_GE(records.size(), 3u) << damaged;
        EXPECT_EQ(Records(records.end() - 2, records.end()), (Records{"third", "last"})) << damaged;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::data
