#pragma once

#include <fstream>
#include <sstream>
#include <string>

namespace lockstep {

/// The contents of a file. Empty if it cannot be read: it is a folder, or belongs to a process in /proc that ends
/// meanwhile. (Stream iterators would throw then.)
inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

}  // namespace lockstep
