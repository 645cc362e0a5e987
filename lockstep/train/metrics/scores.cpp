#include "lockstep/train/metrics/scores.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace lockstep::train::metrics {
namespace {

double quotient_or_zero(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

double sum_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

}  // namespace

double precision_of(const ClassCounts& counts) { return quotient_or_zero(counts.hits, counts.predicted); }
double recall_of(const ClassCounts& counts) { return quotient_or_zero(counts.hits, counts.actual); }

double f_beta_of(const ClassCounts& counts, double beta) {
  const double weight = beta * beta;
  return quotient_or_zero((1 + weight) * counts.hits, weight * counts.actual + counts.predicted);
}

double roc_area(std::span<const double> positives, std::span<const double> negatives) {
  const double all_positives = sum_of(positives), all_negatives = sum_of(negatives);
  if (!(all_positives > 0 && all_negatives > 0)) return kUndefined;
  double pairs = 0, lower = 0;  // pairs in which the positive has the higher score; equal ones count half
  for (std::size_t bin = 0; bin < positives.size(); ++bin) {
    pairs += positives[bin] * (lower + negatives[bin] / 2);
    lower += negatives[bin];
  }
  return pairs / (all_positives * all_negatives);
}

double average_precision(std::span<const double> positives, std::span<const double> negatives) {
  const double all_positives = sum_of(positives);
  if (!(all_positives > 0)) return kUndefined;
  double area = 0, hits = 0, predicted = 0;
  for (std::size_t bin = positives.size(); bin-- > 0;) {
    hits += positives[bin];
    predicted += positives[bin] + negatives[bin];
    if (positives[bin] > 0) area += positives[bin] / all_positives * (hits / predicted);
  }
  return area;
}

CountsByScore counts_by_score(std::span<const double> pairs) {
  std::vector<std::pair<double, bool>> examples;
  examples.reserve(pairs.size() / 2);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) examples.emplace_back(pairs[i], pairs[i + 1] > 0);
  std::ranges::sort(examples);
  CountsByScore counts;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    if (i == 0 || examples[i].first != examples[i - 1].first) {
      counts.positives.push_back(0);
      counts.negatives.push_back(0);
    }
    ++(examples[i].second ? counts.positives : counts.negatives).back();
  }
  return counts;
}

}  // namespace lockstep::train::metrics
