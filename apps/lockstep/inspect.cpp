#include "apps/lockstep/inspect.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>

#include "apps/lockstep/outcome.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/safetensors.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/checkpoint/folder.h"
#include "lockstep/train/logs/event_reader.h"
#include "lockstep/values/float_text.h"

namespace lockstep::app {
namespace {

namespace fs = std::filesystem;
namespace event = train::detail::event;

enum class Kind { Checkpoint, Checkpoints, Events, Safetensors, Records };

Kind kind_of(const std::string& path) {
  std::error_code failed;
  if (!fs::exists(path, failed)) {
    throw NotFound(errors::kFile, {.what = "there is no file or folder " + path,
                                   .help = "give the path of a checkpoint, a folder of checkpoints or a file"});
  }
  if (fs::is_directory(path, failed)) {
    if (!train::list_checkpoints(path).empty()) return Kind::Checkpoints;
    if (fs::exists(path + "/" + train::detail::kManifestName, failed)) return Kind::Checkpoint;
    throw NotFound(
        errors::kCheckpoint,
        {.what = path + " has no checkpoints in it and no manifest.json of a checkpoint",
         .help = "give the folder of a training's checkpoints, or one of them: checkpoints/step-000000001200"});
  }
  const std::string name = fs::path(path).filename().string();
  if (name.find("tfevents") != name.npos) return Kind::Events;
  return name.ends_with(".safetensors") ? Kind::Safetensors : Kind::Records;
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::array kUnits{"B", "KB", "MB", "GB", "TB"};
  double size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1000 && unit + 1 < kUnits.size(); ++unit) size /= 1000;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", size, kUnits.at(unit));
  return text.data();
}

std::string metrics_text(const std::map<std::string, double>& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += str(text.empty() ? "" : ", ", name, ' ', float_text(value));
  return text;
}

std::string summary(const train::Manifest& manifest) {
  std::string text = str("step ", manifest.step, ", ", size_text(manifest.bytes()), ", saved ", manifest.saved_at);
  if (!manifest.metrics.empty()) text += ", " + metrics_text(manifest.metrics);
  for (const std::string& part : manifest.left_out) text += ", without " + part;
  return text;
}

void print_tensors(const std::string& path, const std::string& prefix) {
  const data::SafetensorsFile file(path);
  for (const data::SafetensorsEntry& tensor : file.tensors())
    std::cout << "    " << prefix << tensor.name << "  " << data::describe(to_string(tensor.type), tensor.shape)
              << '\n';
}

void inspect_checkpoint(const std::string& path) {
  const train::Manifest manifest = train::read_manifest(path);
  std::cout << "checkpoint: " << summary(manifest) << ", by Lockstep " << manifest.lockstep_version << '\n';
  for (const train::CheckpointFile& file : manifest.files) {
    std::cout << "  " << file.name << "  " << size_text(file.bytes) << (file.by_replica ? ", entries by replica" : "")
              << '\n';
    if (file.name.ends_with(".safetensors")) print_tensors(str(path, '/', file.name), file.prefix);
  }
}

void inspect_events(const std::string& path) {
  struct Tag {
    std::string kind;
    std::int64_t count = 0, first_step = 0, last_step = 0;
    double last = 0;
  };
  std::map<std::string, Tag> tags;
  const auto [events, damage] = event::read_events(path);
  std::optional<std::int64_t> session;  // begun twice in a file: TensorBoard ignores the first of a folder
  for (const event::Event& each : events) {
    if (each.starts_session && session != each.step) std::cout << "resumed at step " << each.step << '\n';
    if (each.starts_session) session = each.step;
    for (const event::Value& value : each.values) {
      Tag& tag = tags[value.tag];
      if (tag.count++ == 0) tag.first_step = each.step;
      tag.last_step = each.step;
      tag.kind = to_string(value.kind);
      tag.last = value.scalar;
    }
  }
  std::cout << "event file: " << counted(std::ssize(events), "event") << ", " << counted(std::ssize(tags), "tag")
            << '\n';
  for (const auto& [name, tag] : tags) {
    std::cout << "  " << name << "  " << counted(tag.count, tag.kind) << ", steps " << tag.first_step << " to "
              << tag.last_step;
    if (tag.kind == "scalar") std::cout << ", last " << float_text(static_cast<float>(tag.last));
    std::cout << '\n';
  }
  if (!damage.empty()) std::cout << "  the rest cannot be read: " << damage << '\n';
}

/// Reads all records and their checksums.
std::string read_records(const std::string& path) {
  data::TFRecordReader reader(path);
  std::int64_t records = 0;
  std::uint64_t bytes = 0;
  std::size_t longest = 0;
  for (; reader.next(); ++records) {
    bytes += reader.record().size();
    longest = std::max(longest, reader.record().size());
  }
  return str("TFRecord: ", counted(records, "record"), ", ", size_text(bytes), ", the longest ", size_text(longest));
}

/// Describes the damage of one checkpoint or file; empty if there is none.
std::string damage_of(Kind kind, const std::string& path) {
  if (kind == Kind::Checkpoint) return train::find_damage(path);
  try {
    if (kind == Kind::Safetensors) {
      require_safetensors_checksums(data::SafetensorsFile(path));
    } else {
      read_records(path);
    }
  } catch (const DataLoss& error) {
    return error.text().what + (error.text().where.empty() ? "" : ", " + error.text().where);
  }
  return {};
}

int print_verdict(Kind kind, const std::string& path) {
  const std::string damage = damage_of(kind, path);
  std::cout << (damage.empty() ? "ok       " : "damaged  ") << path << (damage.empty() ? "" : ": ") << damage << '\n';
  if (damage.empty()) return kOk;
  return kind == Kind::Checkpoint ? kCheckpoint : kData;
}

}  // namespace

int inspect(const std::string& path) {
  switch (kind_of(path)) {
    case Kind::Checkpoint: inspect_checkpoint(path); break;
    case Kind::Checkpoints:
      for (const auto& [step, checkpoint] : train::list_checkpoints(path)) {
        const std::string name = fs::path(checkpoint).filename().string();
        try {
          std::cout << name << ": " << summary(train::read_manifest(checkpoint)) << '\n';
        } catch (const Error& error) {
          std::cout << name << ": " << error.text().what << '\n';
        }
      }
      break;
    case Kind::Events: inspect_events(path); break;
    case Kind::Safetensors:
      std::cout << "safetensors: " << size_text(fs::file_size(path)) << '\n';
      print_tensors(path, "");
      break;
    case Kind::Records: std::cout << read_records(path) << '\n'; break;
  }
  return kOk;
}

int verify(const std::string& path) {
  const Kind kind = kind_of(path);
  if (kind != Kind::Checkpoints) return print_verdict(kind, path);
  int code = kOk;
  for (const auto& [step, checkpoint] : train::list_checkpoints(path)) {
    const int verdict = print_verdict(Kind::Checkpoint, checkpoint);
    if (verdict != kOk) code = verdict;
  }
  return code;
}

}  // namespace lockstep::app
