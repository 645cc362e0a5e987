#include "lockstep/train/checkpoint/manifest.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/formatted.h"

namespace lockstep::train {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "lockstep checkpoint";
constexpr std::string_view kBegin = "{\n  \"crc32c\": \"";  // keys are sorted: this one is the first
constexpr std::string_view kNoDigits = "00000000";          // in the place of the checksum, for computing it

std::string digits(std::uint32_t crc) { return formatted("%08x", static_cast<unsigned>(crc)); }

std::string with_checksum(std::string text, std::string_view checksum) {
  return text.replace(kBegin.size(), kNoDigits.size(), checksum);
}

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw DataLoss(errors::kCheckpoint,
                 {.what = str(path, " is damaged: ", what), .help = "use an older checkpoint, or a copy of this one"});
}

Json json_of(const CheckpointFile& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"crc32c", digits(file.crc32c)},
          {"prefix", file.prefix},
          {"by_replica", file.by_replica}};
}

CheckpointFile file_of(const Json& json) {
  CheckpointFile file{
      .name = json.at("name").get<std::string>(),
      .bytes = json.at("bytes").get<std::uint64_t>(),
      .crc32c = static_cast<std::uint32_t>(std::stoul(json.at("crc32c").get<std::string>(), nullptr, 16)),
      .prefix = json.at("prefix").get<std::string>(),
      .by_replica = json.at("by_replica").get<bool>()};
  // A name leads to nothing outside of the checkpoint.
  if (file.name.empty() || file.name.front() == '.' || file.name.find('/') != file.name.npos)
    throw std::invalid_argument(str("'", file.name, "' is not a name of a file"));
  return file;
}

Manifest manifest_of(const Json& json) {
  Manifest manifest{.step = json.at("step").get<std::int64_t>(),
                    .snapshot_version = json.at("snapshot").get<int>(),
                    .lockstep_version = json.at("lockstep").get<std::string>(),
                    .saved_at = json.at("saved").get<std::string>(),
                    .metrics = json.at("metrics").get<std::map<std::string, double>>(),
                    .left_out = json.at("left_out").get<std::vector<std::string>>()};
  for (const Json& file : json.at("files")) manifest.files.push_back(file_of(file));
  return manifest;
}

}  // namespace

std::uint64_t Manifest::bytes() const {
  std::uint64_t sum = 0;
  for (const CheckpointFile& file : files) sum += file.bytes;
  return sum;
}

namespace detail {

std::string manifest_text(const Manifest& manifest) {
  Json files = Json::array();
  for (const CheckpointFile& file : manifest.files) files.push_back(json_of(file));
  Json metrics = Json::object();
  for (const auto& [name, value] : manifest.metrics) {
    if (std::isfinite(value)) metrics[name] = value;  // JSON has no others
  }
  const Json json{{"crc32c", kNoDigits},
                  {"format", kFormat},
                  {"version", Manifest::kVersion},
                  {"step", manifest.step},
                  {"snapshot", manifest.snapshot_version},
                  {"lockstep", manifest.lockstep_version},
                  {"saved", manifest.saved_at},
                  {"metrics", metrics},
                  {"left_out", manifest.left_out},
                  {"files", files}};
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
  return with_checksum(text, digits(crc32c(text)));
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  if (text.size() < kBegin.size() + kNoDigits.size() || !text.starts_with(kBegin))
    damaged(path, "it does not begin as a manifest does");
  const std::string checksum(text.substr(kBegin.size(), kNoDigits.size()));
  const std::string actual = digits(crc32c(with_checksum(std::string(text), kNoDigits)));
  if (checksum != actual) damaged(path, str("its CRC32C is ", actual, ", written as ", checksum));
  try {
    const Json json = Json::parse(text);
    if (json.at("format") != kFormat) damaged(path, "its format is not 'lockstep checkpoint'");
    if (const int version = json.at("version").get<int>(); version != Manifest::kVersion) {
      throw Unimplemented(errors::kCheckpoint,
                          {.what = str(path, " has version ", version, ", this Lockstep reads version ",
                                       static_cast<int>(Manifest::kVersion)),
                           .help = "load it with the version of Lockstep that saved it, or a newer one"});
    }
    return manifest_of(json);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    damaged(path, error.what());
  }
}

}  // namespace detail
}  // namespace lockstep::train
