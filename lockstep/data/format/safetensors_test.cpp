#include "lockstep/data/format/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/atomic_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::data {
namespace {

using namespace std::string_literals;
using Type = SafetensorsType;

template <class T>
std::string raw(std::vector<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A file with this header, valid or not, and this many bytes of data.
std::string file_with(const std::string& header, std::size_t data_bytes = 0) {
  return raw<std::uint64_t>({header.size()}) + header + std::string(data_bytes, '\1');
}

std::size_t files_in(const TemporaryFolder& folder) {
  const std::filesystem::directory_iterator begin(folder.path());
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

/// The contents of tests/data/safetensors/python.safetensors.
struct GoldenTensors {
  struct One {
    std::string name;
    Type type;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  std::vector<One> all{
      {"weight", Type::Float32, {2, 3}, raw<float>({0, 1, 2, 3, 4, 5})},
      {"half", Type::Float16, {2}, raw<std::uint16_t>({0x3e00, 0xc000})},
      {"brain", Type::BFloat16, {2}, raw<std::uint16_t>({0x3f80, 0xc040})},
      {"count", Type::Int64, {}, raw<std::int64_t>({7})},
      {"flags", Type::Bool, {3}, "\1\0\1"s},
      {"empty", Type::Float32, {0, 4}, ""},
      {"bytes", Type::UInt8, {5}, "\0\1\2\3\4"s},
      {"gr\xc3\xb6\xc3\x9f"
       "e \"1\"",
       Type::Float64,
       {1},
       raw<double>({0.25})},
      {"i8", Type::Int8, {1}, "\xff"},
      {"i16", Type::Int16, {1}, raw<std::int16_t>({-2})},
      {"i32", Type::Int32, {1}, raw<std::int32_t>({-3})},
      {"e4m3", Type::Float8E4M3, {1}, "\x38"},
      {"e5m2", Type::Float8E5M2, {1}, "\x3c"},
      {"u16", Type::UInt16, {1}, raw<std::uint16_t>({40000})},
      {"u32", Type::UInt32, {1}, raw<std::uint32_t>({3000000000})},
      {"u64", Type::UInt64, {1}, raw<std::uint64_t>({5})},
  };

  std::vector<SafetensorsTensor> views() const {
    std::vector<SafetensorsTensor> list;
    for (const One& one : all) list.push_back({one.name, one.type, one.shape, one.bytes});
    return list;
  }
};

const std::string kGolden = LOCKSTEP_TEST_DATA_DIR "/safetensors/python.safetensors";
const SafetensorsMetadata kGoldenMetadata{{"made by", "Python"}};

TEST(Safetensors, WritesTheBytesThatPythonWrites) {
  const TemporaryFolder folder;
  const GoldenTensors tensors;
  write_safetensors(folder / "ours", tensors.views(), kGoldenMetadata);
  EXPECT_EQ(file_content(folder / "ours"), file_content(kGolden));
}

TEST(Safetensors, ReadsWhatPythonWrote) {
  const SafetensorsFile file(kGolden);
  EXPECT_EQ(file.metadata(), kGoldenMetadata);
  const GoldenTensors golden;
  ASSERT_EQ(file.tensors().size(), golden.all.size());
  for (const auto& wanted : golden.all) {
    const auto found = std::ranges::find(file.tensors(), wanted.name, &SafetensorsEntry::name);
    ASSERT_NE(found, file.tensors().end()) << wanted.name;
    EXPECT_EQ(found->type, wanted.type) << wanted.name;
    EXPECT_EQ(found->shape, wanted.shape) << wanted.name;
    EXPECT_EQ(file.bytes_of(*found), wanted.bytes) << wanted.name;
  }
}

TEST(Safetensors, EveryTensorOfAWrittenFileIsAligned) {
  const GoldenTensors golden;
  auto tensors = golden.views();
  sort_for_safetensors(tensors);
  const std::string header = safetensors_header(tensors, {{"odd", "length"}});
  EXPECT_EQ(header.size() % 8, 0u);
  std::string whole = header;
  for (const auto& tensor : tensors) whole += tensor.bytes;
  for (const auto& entry : parse_safetensors(whole, "memory").tensors)
    EXPECT_EQ(entry.begin % item_size(entry.type), 0u) << entry.name;
}

TEST(Safetensors, AFileMayBeEmpty) {
  EXPECT_TRUE(parse_safetensors(safetensors_header({}, {}), "memory").tensors.empty());
  EXPECT_EQ(parse_safetensors(safetensors_header({}, {{"a", "\x01\"\n"}}), "memory").metadata.at("a"), "\x01\"\n");
}

TEST(Safetensors, APipeIsNoFileAndIsNotWaitedFor) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error([&] { SafetensorsFile file(folder / "pipe"); }, Code::FailedPrecondition, errors::kFile, {"pipe"});
}

TEST(Safetensors, EveryPrefixOfAFileIsDamaged) {
  const std::string whole = file_content(kGolden);
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_THROW(parse_safetensors(whole.substr(0, length), "part"), DataLoss) << length;
}

TEST(Safetensors, DamagedAndHostileHeadersAreNamed) {
  const auto one = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
  const std::string good = R"("dtype":"U8","shape":[2],"data_offsets":[0,2])";
  ASSERT_EQ(parse_safetensors(file_with(one(good), 2), "good").tensors.size(), 1u);
  struct Row {
    const char* name;
    std::string file;
    const char* says;
  };
  const std::vector<Row> rows{
      {"Empty", "", "length of its header"},
      {"LengthOnly", raw<std::uint64_t>({2}), "longer than it can be"},
      {"LengthOverflows", raw<std::uint64_t>({~0ULL}) + "{}", "longer than it can be"},
      {"LengthAboveTheLimit", raw<std::uint64_t>({100'000'001}) + "{}", "longer than it can be"},
      {"NoHeader", file_with(""), "does not start with '{'"},
      {"Blanks", file_with("  {}"), "does not start with '{'"},
      {"ByteOrderMark", file_with("\xef\xbb\xbf{}"), "does not start with '{'"},
      {"List", file_with("[]"), "does not start with '{'"},
      {"Open", file_with("{"), "not valid JSON"},
      {"TwoObjects", file_with("{}{}"), "not valid JSON"},
      {"NoUtf8", file_with("{\"\xff\":1}"), "not valid JSON"},
      {"ZeroByte", file_with("{}\0"s), "not valid JSON"},
      {"Nested", file_with("{\"a\":" + std::string(100'000, '[')), "a list and not an object"},
      {"NestedObjects", file_with(one(R"("shape":{"a":{"a":{}}})")), "is an object"},
      {"NestedNumbers", file_with(one(R"("shape":[[1]])")), "holds a list"},
      {"TensorIsNull", file_with(R"({"a":null})"), "null and not an object"},
      {"TensorIsANumber", file_with(R"({"a":1})"), "a number and not an object"},
      {"SameNameTwice", file_with("{\"a\":{" + good + "},\"a\":{" + good + "}}", 2), "'a' comes twice"},
      {"SameFieldTwice", file_with(one(good + R"(,"dtype":"U8")"), 2), "dtype twice"},
      {"UnknownField", file_with(one(good + R"(,"more":"U8")"), 2), "unknown field 'more'"},
      {"NoType", file_with(one(R"("shape":[2],"data_offsets":[0,2])"), 2), "lacks dtype"},
      {"NoShape", file_with(one(R"("dtype":"U8","data_offsets":[0,2])"), 2), "lacks dtype"},
      {"NoOffsets", file_with(one(R"("dtype":"U8","shape":[2])"), 2), "lacks dtype"},
      {"TypeIsANumber", file_with(one(R"("dtype":8)")), "dtype of tensor 'a' is a number"},
      {"ShapeIsAText", file_with(one(R"("shape":"2")")), "shape of tensor 'a' is a text"},
      {"Negative", file_with(one(R"("dtype":"U8","shape":[-2],"data_offsets":[0,2])"), 2), "negative"},
      {"NegativeOffset", file_with(one(R"("dtype":"U8","shape":[2],"data_offsets":[-2,0])"), 2), "negative"},
      {"Fraction", file_with(one(R"("dtype":"U8","shape":[2.0],"data_offsets":[0,2])"), 2), "the number '2.0'"},
      {"Above63Bits", file_with(one(R"("shape":[9223372036854775808])")), "2^63"},
      {"Above64Bits", file_with(one(R"("shape":[99999999999999999999])")), "the number"},
      {"ProductOverflows", file_with(one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])")),
       "larger than any file"},
      {"EmptyProductOverflows",
       file_with(one(R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])")),
       "larger than any file"},
      {"ThreeOffsets", file_with(one(R"("data_offsets":[0,1,2])")), "more than two"},
      {"OneOffset", file_with(one(R"("data_offsets":[0])")), "fewer than two"},
      {"OffsetsBackwards", file_with(one(R"("dtype":"U8","shape":[2],"data_offsets":[2,0])"), 2),
       "do not fit its shape"},
      {"OffsetsTooShort", file_with(one(R"("dtype":"U16","shape":[2],"data_offsets":[0,2])"), 2),
       "do not fit its shape"},
      {"Gap", file_with(one(R"("dtype":"U8","shape":[2],"data_offsets":[1,3])"), 3), "gap"},
      {"Overlap", file_with("{\"a\":{" + good + R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3),
       "overlaps"},
      {"CutOff", file_with(one(good), 1), "cut off"},
      {"MoreBytes", file_with(one(good), 3), "bytes follow"},
      {"MetadataTwice", file_with(R"({"__metadata__":{},"__metadata__":{}})"), "twice"},
      {"MetadataKeyTwice", file_with(R"({"__metadata__":{"a":"1","a":"2"}})"), "metadata 'a' comes twice"},
      {"MetadataIsANumber", file_with(R"({"__metadata__":{"a":1}})"), "not a text"},
      {"MetadataIsAList", file_with(R"({"__metadata__":[]})"), "a list"},
  };
  for (const Row& row : rows) {
    expect_error([&] { parse_safetensors(row.file, "x.safetensors"); }, Code::DataLoss, errors::kSafetensors,
                 {"x.safetensors", row.says}, row.name);
  }
  std::string shape = "[1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  expect_error([&] { parse_safetensors(file_with(one("\"shape\":" + shape + "]")), "x"); }, Code::DataLoss,
               errors::kSafetensors, {"64 dimensions"});
  expect_error([&] { parse_safetensors(file_with(one(R"("dtype":"C64")")), "x"); }, Code::Unimplemented,
               errors::kSafetensors, {"'a'", "'C64'", "torch.float32"});
}

TEST(Safetensors, WhatCannotBeWrittenIsNamed) {
  const auto written = [](std::vector<SafetensorsTensor> tensors, const SafetensorsMetadata& metadata = {}) {
    return [=] { safetensors_header(tensors, metadata); };
  };
  const auto expect = [](const std::function<void()>& action, const char* says) {
    expect_error(action, Code::InvalidArgument, errors::kSafetensors, {says});
  };
  expect(written({{"\xff", Type::UInt8, {1}, "a"}}), "not valid UTF-8");
  expect(written({{"__metadata__", Type::UInt8, {1}, "a"}}), "kept for metadata");
  expect(written({{"a", Type::UInt8, {1}, "a"}, {"a", Type::UInt8, {1}, "b"}}), "comes twice");
  expect(written({{"a", Type::UInt8, {2}, "a"}}), "does not have 1 bytes");
  expect(written({{"a", Type::UInt8, std::vector<std::int64_t>(65, 1), "a"}}), "64 dimensions");
  expect(written({}, {{"\xff", "a"}}), "not valid UTF-8");
}

TEST(Checksums, FindEveryFlippedBit) {
  const TemporaryFolder folder;
  std::vector<SafetensorsTensor> tensors{{"a", Type::UInt8, {3}, "abc"}, {"b", Type::UInt16, {1}, "de"}};
  SafetensorsMetadata metadata{{"lockstep.steps", "100"}, {"other", "1"}};
  sort_for_safetensors(tensors);
  metadata[kChecksumKey] = safetensors_checksums(tensors, metadata);
  write_safetensors(folder / "file", tensors, metadata);
  const std::string whole = file_content(folder / "file");
  require_safetensors_checksums(SafetensorsFile(folder / "file"));
  const auto named = [&](std::size_t at, const char* says) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    const SafetensorsFile file(folder.file("damaged", damaged));
    expect_error([&] { require_safetensors_checksums(file); }, Code::DataLoss, errors::kSafetensors, {"damaged", says});
  };
  for (std::size_t i = 0; i < 3; ++i) named(whole.size() - 1 - i, "'a'");
  for (std::size_t i = 3; i < 5; ++i) named(whole.size() - 1 - i, "'b'");
  named(whole.find("\"100\"") + 1, "metadata");
  metadata[kChecksumKey] += "0";
  write_safetensors(folder / "file", tensors, metadata);
  expect_error([&] { require_safetensors_checksums(SafetensorsFile(folder / "file")); }, Code::DataLoss,
               errors::kSafetensors, {"one checksum per tensor"});
  metadata.erase(kChecksumKey);
  write_safetensors(folder / "file", tensors, metadata);
  require_safetensors_checksums(SafetensorsFile(folder / "file"));
}

TEST(Safetensors, FilesOfTorchAreToldFromDamagedOnes) {
  const auto expect = [](const std::string& file, const std::vector<std::string>& says) {
    expect_error([&] { parse_safetensors(file, "x.pt"); }, Code::InvalidArgument, errors::kSafetensors, says);
  };
  expect("PK\3\4\0\0\x08\x08\0\0\0\0"s + std::string(64, 'x'),
         {"x.pt is a zip archive, as torch::save writes them, and not a safetensors file", "torch::load(plain, path)",
          "model.update", "save_file(torch.load(path)"});
  expect(
      "\x80\x02\x8a\nl\xfc\x9c"
      "F\xf9 j\xa8P\x19."s,
      {"is a pickle, as old torch.save wrote", "save_file(torch.load(path)"});
  // A header of 67 MB has the same first bytes.
  EXPECT_THROW(parse_safetensors("PK\3\4\0\0\0\0"s + "{}" + std::string(0x04034B50 - 2, ' ') + "x", "x"), DataLoss);
}

TEST(AtomicFile, KeepsTheOldFileUntilTheNewOneIsComplete) {
  const TemporaryFolder folder;
  const std::string path = folder.file("file", "old");
  {
    AtomicFile file(path, 3);
    file.append("new");
    EXPECT_EQ(file_content(path), "old");
  }
  EXPECT_EQ(file_content(path), "old");
  EXPECT_EQ(files_in(folder), 1u) << "the unfinished file is removed";
  AtomicFile first(path, 5), second(path, 6);
  first.append("fi");
  second.append("sec");
  first.append("rst");
  second.append("ond");
  first.commit();
  EXPECT_EQ(file_content(path), "first");
  second.commit();
  EXPECT_EQ(file_content(path), "second");
  EXPECT_EQ(files_in(folder), 1u);
}

TEST(AtomicFile, KeepsPermissionsAndLinks) {
  const TemporaryFolder folder;
  const std::string path = folder.file("file", "old");
  std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::create_symlink("file", folder / "link");
  AtomicFile file(folder / "link", 3);
  file.append("new");
  file.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(file_content(path), "new");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(AtomicFile, FailuresAreNamedAndLeaveTheOldFile) {
  const TemporaryFolder folder;
  const auto expect = [](const std::string& path, Code code, const std::vector<std::string>& says) {
    expect_error([&] { AtomicFile(path, 1); }, code, errors::kFile, says);
  };
  expect("", Code::InvalidArgument, {"empty"});
  expect(folder / std::string("cut\0off", 7), Code::InvalidArgument, {"zero byte"});
  std::filesystem::create_symlink(folder / "there", folder / "here");
  std::filesystem::create_symlink(folder / "here", folder / "there");
  expect(folder / "here", Code::FailedPrecondition, {"follow the links", "leads back to itself"});
  expect(folder / std::string(250, 'x'), Code::FailedPrecondition, {"shorter name"});
  expect(folder.path().string(), Code::FailedPrecondition, {"a folder"});
  expect("/dev/null", Code::FailedPrecondition, {"not a file"});
  expect(folder / "none/file", Code::NotFound, {"no folder", "none", "create_directories"});
  expect(folder.file("plain", "") + "/file", Code::NotFound, {"no folder"});
  expect("/proc/x", Code::FailedPrecondition,
         {"cannot create /proc/x: the folder /proc takes no new files", "on a disk"});
  if (::geteuid() != 0) {
    std::filesystem::create_directory(folder / "closed");
    std::filesystem::permissions(folder / "closed", std::filesystem::perms::owner_read);
    expect(folder / "closed/file", Code::FailedPrecondition, {"cannot be created", "closed"});
  }
}

TEST(AtomicFile, AFullDiskLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("file", "old");
  // A limit on the size of files fails a write as a full disk does.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string large(10'000, 'x');
  const SeenError seen = error_of([&] { write_safetensors(path, {{"a", Type::UInt8, {10'000}, large}}, {}); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  sigset_t waiting;
  ASSERT_EQ(::sigpending(&waiting), 0);
  EXPECT_EQ(::sigismember(&waiting, SIGXFSZ), 0) << "it would end the program later";
  EXPECT_EQ(seen.code, Code::ResourceExhausted) << seen.text;
  for (const char* part : {"bytes needed", "free", "untouched"}) EXPECT_TRUE(contains(seen.text, part)) << seen.text;
  EXPECT_EQ(file_content(path), "old");
  EXPECT_EQ(files_in(folder), 1u);
}

}  // namespace
}  // namespace lockstep::data
