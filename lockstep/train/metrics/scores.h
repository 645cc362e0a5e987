#pragma once

#include <span>
#include <vector>

// From counts to values, without torch's operators.
namespace lockstep::train::metrics {

/// What is known about one class. Predicted and actual include the hits.
struct ClassCounts {
  double hits = 0;
  double predicted = 0;
  double actual = 0;
};

double precision_of(const ClassCounts& counts);
double recall_of(const ClassCounts& counts);
double f_beta_of(const ClassCounts& counts, double beta);

/// Area under the curve of scores in bins, the lowest first. NaN without positives or, for Roc, without negatives.
double roc_area(std::span<const double> positives, std::span<const double> negatives);
double average_precision(std::span<const double> positives, std::span<const double> negatives);

/// How many examples have each score that occurs, the lowest first.
struct CountsByScore {
  std::vector<double> positives, negatives;
};
/// `pairs`: a score, then 1 for a positive example or 0, for each of them. No score may be NaN.
CountsByScore counts_by_score(std::span<const double> pairs);

}  // namespace lockstep::train::metrics
