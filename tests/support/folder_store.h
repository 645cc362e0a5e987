#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "lockstep/comm/engine/engine.h"

namespace lockstep::engine {

/// A store of files, for test programs and benchmarks whose workers are processes of one machine.
inline EngineStore folder_store(const std::string& folder) {
  const auto path_of = [folder](std::string key) {
    std::ranges::replace(key, '/', '_');
    return folder + "/" + key;
  };
  return {.set =
              [path_of](const std::string& key, const std::string& value) {
                const std::string path = path_of(key);
                const std::string fresh = path + ".new" + std::to_string(::getpid());
                std::ofstream(fresh, std::ios::binary) << value;
                std::filesystem::rename(fresh, path);
              },
          .get =
              [path_of](const std::string& key, Deadline deadline) {
                const std::string path = path_of(key);
                while (!std::filesystem::exists(path)) {
                  if (deadline.expired())
                    throw DeadlineExceeded(errors::kPeerMissing, {.what = "no worker wrote " + path, .help = "-"});
                  std::this_thread::sleep_for(std::chrono::milliseconds(1));
                }
                std::ifstream in(path, std::ios::binary);
                return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
              }};
}

}  // namespace lockstep::engine
