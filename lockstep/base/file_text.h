#pragma once

#include <fstream>
#include <sstream>
#include <string>

namespace lockstep {

/// What a file holds. Nothing if it cannot be read: it is a folder, or of a process in /proc that ends meanwhile. (Iterators
/// over the stream would throw then.)
inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

}  // namespace lockstep
