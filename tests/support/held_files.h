#pragma once

namespace lockstep {

/// While it lives, the other threads of this process wait when they give a file its final name: what is written in the background
/// stays unfinished. Needs held_files.cpp in the test program.
class HeldFiles {
 public:
  HeldFiles();
  ~HeldFiles() { release(); }
  HeldFiles(const HeldFiles&) = delete;
  HeldFiles& operator=(const HeldFiles&) = delete;

  void release();
};

}  // namespace lockstep
