#pragma once

#include <string>

/// Writes event files of a run and of its resumed part to `folder`/run; check_tensorboard of tensorboard_files.py knows the contents.
void write_tensorboard(const std::string& folder);
