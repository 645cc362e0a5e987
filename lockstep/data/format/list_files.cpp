#include "lockstep/data/format/list_files.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "lockstep/data/errors.h"
#include "lockstep/data/format/file_error.h"

namespace lockstep::data {
namespace {

void add_matches(const std::string& pattern, std::vector<std::string>& files) {
  struct Matches {
    glob_t found{};
    ~Matches() { ::globfree(&found); }
  } matches;
  // GLOB_MARK appends a slash to folders. A folder that cannot be read must not look empty.
  errno = 0;
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_MARK | GLOB_ERR, nullptr, &matches.found);
  if (result == GLOB_NOSPACE) throw std::bad_alloc();
  if (result == GLOB_ABORTED) throw_file_error("look for files like", pattern, errno != 0 ? errno : EIO);
  const std::size_t before = files.size();
  for (std::size_t i = 0; result == 0 && i < matches.found.gl_pathc; ++i) {
    std::string name = matches.found.gl_pathv[i];
    if (!name.ends_with('/')) files.push_back(std::move(name));
  }
  if (files.size() == before) {
    throw NotFound(
        errors::kNoFiles,
        {.what = str("no file matches ", in_quotes(pattern, 200)),
         .help = "check the folder and the pattern; a relative one starts at the working directory, and `*` does "
                 "not match a slash"});
  }
}

}  // namespace

std::vector<std::string> matching_files(const std::vector<std::string>& patterns) {
  if (patterns.empty())
    throw NotFound(errors::kNoFiles,
                   {.what = "no pattern was given", .help = "give at least one pattern, such as \"train-*.tfrecord\""});
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) add_matches(pattern, files);
  std::ranges::sort(files);
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

}  // namespace lockstep::data
