#include <iostream>

#include <lockstep/base/error.h>
#include <lockstep/version.h>

int main() {
  try {
    throw lockstep::InvalidArgument(lockstep::errors::kShape, {.what = "nothing is wrong", .help = "carry on"});
  } catch (const lockstep::Error& error) {
    std::cout << "Lockstep " << LOCKSTEP_VERSION << "\n" << error.what() << "\n";
  }
}
