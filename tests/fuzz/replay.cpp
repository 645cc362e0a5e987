// Runs a fuzz target over the files of its corpus, without a fuzzer: earlier findings stay fixed.
//
//   replay CORPUS

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/target.h"

namespace {

std::vector<char> content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void run(const std::vector<char>& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s CORPUS\n", arguments[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    std::fprintf(stderr, "%s: no inputs\n", arguments[1]);
    return 1;
  }
  std::size_t runs = 0;
  for (const auto& file : files) {
    std::vector<char> input = content_of(file);
    run(input);
    ++runs;
    // Every prefix, and every byte changed a little: the neighbours of known inputs.
    const std::size_t most = std::min<std::size_t>(input.size(), 600);
    for (std::size_t i = 0; i < most; ++i) {
      run({input.begin(), input.begin() + static_cast<std::ptrdiff_t>(i)});
      for (const int flip : {1, 128}) {
        input[i] = static_cast<char>(input[i] ^ flip);
        run(input);
        input[i] = static_cast<char>(input[i] ^ flip);
      }
      runs += 3;
    }
  }
  std::printf("%zu inputs from %zu files\n", runs, files.size());
  return 0;
}
