#pragma once

#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>

namespace lockstep {

/// The contents of a file, from byte `from` on. Empty if it cannot be read: it is a folder, or belongs to a process in /proc that
/// ends meanwhile. (Stream iterators would throw then.)
inline std::string file_text(const std::string& path, std::size_t from = 0) {
  std::ifstream file(path, std::ios::binary);
  if (from > 0) file.seekg(static_cast<std::streamoff>(from));
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

}  // namespace lockstep
