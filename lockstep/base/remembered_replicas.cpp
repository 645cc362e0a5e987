#include "lockstep/base/remembered_replicas.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <system_error>

#include "lockstep/base/cores.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::mutex noted_mutex;
std::string noted;
bool are_several = false;

constexpr int kMostReplicas = 4096;

/// What comes behind the number in a line.
std::string rest_of_line(const TuneKey& key) {
  std::string line = str(key.cores, '\t', key.cpu, '\t', key.program);
  std::ranges::replace(line, '\n', ' ');
  return line;
}

}  // namespace

std::string program_key(const std::string& name) {
  if (!name.empty()) return name;
  std::error_code failed;
  const fs::path called = program_invocation_name;
  if (called.has_parent_path() && fs::exists(called, failed)) {
    const fs::path folder = fs::canonical(fs::absolute(called).parent_path(), failed);
    if (!failed) return (folder / called.filename()).string();
  }
  return fs::read_symlink("/proc/self/exe", failed).string();  // found by PATH
}

void note_program_key(const std::string& key) {
  const std::lock_guard lock(noted_mutex);
  are_several = are_several || (!noted.empty() && noted != key);
  noted = key;
}

std::string noted_program_key() {
  const std::lock_guard lock(noted_mutex);
  if (are_several) return "";
  return noted.empty() ? program_key("") : noted;
}

TuneKey key_here(std::string program) { return {std::move(program), cpu_name(), usable_cores()}; }

std::optional<int> find_replicas(std::string_view text, const TuneKey& key) {
  const std::string wanted = rest_of_line(key);
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int replicas = 0;
    std::string rest;
    if (words >> replicas && words.get() == '\t' && std::getline(words, rest) && rest == wanted && replicas > 0 &&
        replicas <= kMostReplicas)
      return replicas;
  }
  return std::nullopt;
}

std::string with_replicas(std::string_view text, const TuneKey& key, int replicas) {
  const std::string own = rest_of_line(key);
  std::string kept;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.ends_with('\t' + own)) kept += line + '\n';
  }
  return str(kept, replicas, '\t', own, '\n');
}

std::string remembered_replicas_path() {
  const std::string cache = environment_variable("XDG_CACHE_HOME"), home = environment_variable("HOME");
  if (!cache.empty()) return cache + "/lockstep/replicas";
  return home.empty() ? "" : home + "/.cache/lockstep/replicas";
}

std::optional<int> remembered_replicas(const TuneKey& key) {
  return find_replicas(file_text(remembered_replicas_path()), key);
}

void remember_replicas(const TuneKey& key, int replicas) {
  const std::string path = remembered_replicas_path();
  const std::string temporary = str(path, '.', ::getpid(), ".tmp");
  std::error_code failed;
  fs::create_directories(fs::path(path).parent_path(), failed);
  std::ofstream file(temporary);
  file << with_replicas(file_text(path), key, replicas);
  file.close();
  if (file) fs::rename(temporary, path, failed);
  if (file && !failed) return;
  fs::remove(temporary, failed);
  throw FailedPrecondition(errors::kFile, {.what = str("cannot write ", path.empty() ? "the cache file" : path),
                                           .help = "set XDG_CACHE_HOME to a folder that this user may write to"});
}

}  // namespace lockstep
