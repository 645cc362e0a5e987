#include "lockstep/nn/step/bucket_plan.h"

#include <algorithm>
#include <iomanip>
#include <iterator>

#include "lockstep/base/text.h"

namespace lockstep {
namespace {

constexpr std::size_t kAlignment = 16;      // elements; aligns each gradient for vector code
constexpr std::size_t kSharePerBucket = 4;  // gradients larger than this part of a bucket are sent separately

std::string described(const Bucket& bucket, std::size_t number, std::size_t count,
                      const std::vector<BucketedParameter>& parameters) {
  constexpr std::size_t kNamed = 3;
  std::string names;
  for (std::size_t i = 0; i < bucket.parameters.size() && i < kNamed; ++i)
    names += (i > 0 ? ", " : "") + parameters[static_cast<std::size_t>(bucket.parameters[i])].name;
  if (bucket.parameters.size() > kNamed) names += str(" and ", bucket.parameters.size() - kNamed, " more");
  return str("bucket ", number + 1, " of ", count, " (", names, "; ", std::fixed, std::setprecision(1),
             static_cast<double>(bucket.elements * size_of(bucket.dtype)) / 1e6, " MB)");
}

}  // namespace

std::vector<Bucket> plan_buckets(const std::vector<BucketedParameter>& parameters, const std::vector<int>& order,
                                 std::size_t bytes) {
  std::vector<bool> is_planned(parameters.size(), false);
  std::vector<Bucket> buckets;
  std::vector<Bucket> open;  // at most one per element type
  const auto add = [&](int p) {
    const auto at = static_cast<std::size_t>(p);
    const BucketedParameter& parameter = parameters[at];
    if (!parameter.travels || is_planned[at]) return;
    is_planned[at] = true;
    const std::size_t width = size_of(parameter.dtype);
    if (parameter.elements * width * kSharePerBucket >= bytes) {
      buckets.push_back({.parameters = {p}, .begins = {0}, .elements = parameter.elements, .dtype = parameter.dtype});
      return;
    }
    auto bucket = std::ranges::find(open, parameter.dtype, &Bucket::dtype);
    if (bucket == open.end()) bucket = open.insert(open.end(), {.dtype = parameter.dtype});
    bucket->parameters.push_back(p);
    bucket->begins.push_back((bucket->elements + kAlignment - 1) / kAlignment * kAlignment);
    bucket->elements = bucket->begins.back() + parameter.elements;
    if (bucket->elements * width < bytes) return;
    buckets.push_back(std::move(*bucket));
    open.erase(bucket);
  };
  for (const int p : order) add(p);
  for (std::size_t p = 0; p < parameters.size(); ++p) add(static_cast<int>(p));
  std::move(open.begin(), open.end(), std::back_inserter(buckets));
  for (std::size_t b = 0; b < buckets.size(); ++b)
    buckets[b].name = described(buckets[b], b, buckets.size(), parameters);
  return buckets;
}

}  // namespace lockstep
