#include <gtest/gtest.h>

#include <iostream>

#include "lockstep/strategy/devices.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (lockstep::visible_gpus() == 0) {
    std::cout << "gpu_test: skipped, because no GPU is visible\n";
    return 77;
  }
  return RUN_ALL_TESTS();
}
