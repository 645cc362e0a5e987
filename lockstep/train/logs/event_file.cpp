#include "lockstep/train/logs/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/comm/socket.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/train/formatted.h"

namespace lockstep::train {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

/// The newest second in the names of the folder's event files; 0 if there is none.
std::int64_t newest_second(const std::string& folder) {
  std::int64_t newest = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    std::int64_t second = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), second);
    if (second < 9'999'999'999) newest = std::max(newest, second);  // more than ten digits are not ours
  }
  return newest;
}

/// TensorBoard reads the files of a folder in the order of their names: a new one must come last, even if the clock was
/// set back meanwhile.
std::string path_of_new_file(const std::string& folder, double now) {
  if (is_being_tuned()) return "/dev/null";
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) data::throw_file_error("create the folder", folder, failed.value());
  static std::atomic<int> files{0};
  const auto second = static_cast<long long>(std::max(static_cast<std::int64_t>(now), newest_second(folder) + 1));
  return str(folder, '/', kPrefix, formatted("%010lld", second), '.', host_name(), '.', ::getpid(), '.',
             files.fetch_add(1));
}

}  // namespace

EventFile::EventFile(const std::string& folder, EventFileOptions options)
    : options_(std::move(options)), path_(path_of_new_file(folder, now())), out_(path_) {
  out_.write(detail::event::file_version(now()));
  if (options_.resume_after) {
    // TensorBoard's pages drop nothing at the first start of a folder, and the files before this one have none.
    for (int start = 0; start < 2; ++start) out_.write(detail::event::session_start(at(*options_.resume_after + 1)));
  }
  flush();
}

double EventFile::now() const {
  if (options_.clock) return options_.clock();
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void EventFile::scalar(std::string_view tag, std::int64_t step, double value) {
  out_.write(detail::event::scalar(at(step), tag, static_cast<float>(value)));
}

void EventFile::histogram(std::string_view tag, std::int64_t step, const Histogram& values) {
  out_.write(detail::event::histogram(at(step), tag, values));
}

void EventFile::image(std::string_view tag, std::int64_t step, const Image& image) {
  out_.write(detail::event::image(at(step), tag, image));
}

void EventFile::text(std::string_view tag, std::int64_t step, std::string_view markdown) {
  out_.write(detail::event::text(at(step), tag, markdown));
}

void EventFile::hparams(const HParams& values, const std::vector<std::string>& metric_tags) {
  for (const std::string& record : detail::event::hparams(now(), values, metric_tags)) out_.write(record);
}

}  // namespace lockstep::train
