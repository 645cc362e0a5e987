#include "lockstep/nn/weights_apart.h"

#include <atomic>

namespace lockstep {
namespace {

enum : unsigned { kWeights = 1, kOutOfReach = 2, kMixed = 4 };
std::atomic<unsigned> apart{0};  // replicas of another strategy may be making a model

}  // namespace

void keep_weights_apart(const ApartOptions& options) {
  apart = (options.weights ? kWeights : 0U) | (options.in_reach ? 0U : kOutOfReach) | (options.mixed ? kMixed : 0U);
}

ApartOptions weights_apart() {
  const unsigned now = apart;
  return {.weights = (now & kWeights) != 0, .in_reach = (now & kOutOfReach) == 0, .mixed = (now & kMixed) != 0};
}

}  // namespace lockstep
