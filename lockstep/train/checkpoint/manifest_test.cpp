#include "lockstep/train/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <limits>

#include "lockstep/base/crc32c.h"
#include "lockstep/train/checkpoint/errors.h"
#include "tests/support/expect_error.h"

namespace lockstep::train {
namespace {

using detail::manifest_text;
using detail::parse_manifest;

Manifest some_manifest() {
  return {.step = 1200,
          .lockstep_version = "0.1.0",
          .saved_at = "2026-11-19T08:00:00Z",
          .metrics = {{"val_loss", 0.1}},
          .left_out = {"optimizer"},
          .files = {{.name = "model.safetensors", .bytes = 1ULL << 40, .crc32c = 0xe3069283, .prefix = "model/"},
                    {.name = "b.replicas.safetensors", .bytes = 5, .crc32c = 1, .prefix = "b/", .by_replica = true}}};
}

/// A valid checksum over another text.
std::string with_right_checksum(std::string text) {
  const std::size_t at = text.find("crc32c\": \"") + 10;
  text.replace(at, 8, "00000000");
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", crc32c(text));
  return text.replace(at, 8, digits);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(Manifest, IsReadBack) {
  EXPECT_EQ(parse_manifest(manifest_text(some_manifest()), "m"), some_manifest());
  EXPECT_EQ(parse_manifest(manifest_text({}), "m"), Manifest{});
  EXPECT_EQ(some_manifest().bytes(), (1ULL << 40) + 5);
}

TEST(Manifest, HasOnlyFiniteMetrics) {
  Manifest manifest = some_manifest();
  manifest.metrics["loss"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(parse_manifest(manifest_text(manifest), "m"), some_manifest());
}

TEST(Manifest, ShowsEveryFlippedBitAndEveryCut) {
  const std::string text = manifest_text(some_manifest());
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      EXPECT_EQ(error_of([&] { parse_manifest(damaged, "m"); }).code, Code::DataLoss) << at;
    }
    EXPECT_EQ(error_of([&] { parse_manifest(std::string_view(text).substr(0, at), "m"); }).code, Code::DataLoss) << at;
  }
  expect_error([&] { parse_manifest(text + "\n", "a/m"); }, Code::DataLoss, errors::kCheckpoint,
               {"a/m is damaged: its CRC32C is"});
}

TEST(Manifest, RefusesWhatAValidChecksumDoesNotMakeRight) {
  const std::string text = manifest_text(some_manifest());
  const struct {
    const char *from, *to;
    Code code;
    std::string says;
  } rows[] = {
      {"\"version\": 1", "\"version\": 2", Code::Unimplemented, "m has version 2, this Lockstep reads version 1"},
      {"lockstep checkpoint", "other", Code::DataLoss, "its format is not"},
      {"\"model.safetensors\"", "\"../model\"", Code::DataLoss, "'../model' is not a name of a file"},
      {"\"model.safetensors\"", "\"/etc/passwd\"", Code::DataLoss, "is not a name of a file"},
      {"\"model.safetensors\"", "\"a/b\"", Code::DataLoss, "is not a name of a file"},
      {"\"model.safetensors\"", "\"\"", Code::DataLoss, "is not a name of a file"},
      {"\"model.safetensors\"", "7", Code::DataLoss, "m is damaged"},
      {"\"e3069283\"", "\"none\"", Code::DataLoss, "m is damaged"},
      {"\"step\": 1200", "\"step\": \"x\"", Code::DataLoss, "m is damaged"},
      {"\"step\"", "\"steps\"", Code::DataLoss, "m is damaged"},
      {"\"files\": [", "\"files\": {", Code::DataLoss, "m is damaged"},
  };
  for (const auto& row : rows) {
    expect_error([&] { parse_manifest(with_right_checksum(replaced(text, row.from, row.to)), "m"); }, row.code,
                 errors::kCheckpoint, {row.says}, row.to);
  }
}

}  // namespace
}  // namespace lockstep::train
