#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/comm/dtype.h"

// Which gradients are sent together between workers: a pure function of what all workers know.
namespace lockstep {

struct BucketedParameter {
  std::string name = {};
  std::size_t elements = 0;
  Dtype dtype = Dtype::Float32;
  bool travels = true;  ///< false: sparse, frozen for good, or of a type that the engine cannot sum
};

struct Bucket {
  std::vector<int> parameters = {};      ///< in the order in which backward computes their gradients
  std::vector<std::size_t> begins = {};  ///< per parameter in the bucket's array, at multiples of 16 elements
  std::size_t elements = 0;
  Dtype dtype = Dtype::Float32;
  std::string name = {};  ///< "bucket 3 of 5 (conv4.weight, conv4.bias; 2.4 MB)"
};

/// Plans the buckets in the order in which backward fills them if gradients arrive in `order`, as in the chief's first
/// step (worker_agreement.cpp); parameters missing in `order` come last. A large gradient is a bucket by itself, which
/// needs no copy; small ones of one type fill a bucket of about `bytes`.
std::vector<Bucket> plan_buckets(const std::vector<BucketedParameter>& parameters, const std::vector<int>& order,
                                 std::size_t bytes);

}  // namespace lockstep
