#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/train/metric.h"

// Metrics of `ls::train::Model` and of loops of your own:
//
//     .metrics = {ls::train::metrics::accuracy(), ls::train::metrics::auc({.from_logits = true})}
//
// Values agree with scikit-learn's. `output` is what the model returns, [rows, ...]. Metrics throw InvalidArgument for shapes that do
// not fit.
namespace lockstep::train::metrics {

/// Options of `accuracy`.
struct AccuracyOptions {
  std::string name = "accuracy";  ///< name of the value
  std::int64_t top_k = 1;         ///< correct if fewer than k classes have a higher score than the target's
};
/// The output has scores of classes in dimension 1. Targets are class numbers, without that dimension, or one-hot vectors or
/// probabilities of the output's shape.
LOCKSTEP_EXPORT MetricPtr accuracy(const AccuracyOptions& options = {});

/// Options of `binary_accuracy`.
struct BinaryOptions {
  std::string name = {};     ///< default: the function's name
  double threshold = 0.5;    ///< larger scores are positive
  bool from_logits = false;  ///< applies a sigmoid to the output first
};
/// Output and target have the same shape; a target above 0.5 is positive.
LOCKSTEP_EXPORT MetricPtr binary_accuracy(const BinaryOptions& options = {});

/// How the values of several classes are averaged.
enum class Average {
  Macro,     ///< mean over the classes that occur
  Micro,     ///< computed from the counts of all classes together
  Weighted,  ///< mean weighted by how often each class occurs in the targets
};

/// Options of `precision`, `recall` and `f_beta`.
struct ClassOptions {
  std::string name = {};  ///< name of the value; empty: the function's name
  /// Number of scores in dimension 1, with class numbers as targets; 0: binary, as in BinaryOptions.
  std::int64_t classes = 0;
  Average average = Average::Macro;  ///< how classes become one value
  double threshold = 0.5;            ///< binary only
  bool from_logits = false;          ///< binary only
  double beta = 1.0;                 ///< of f_beta: how much more recall counts than precision
};
/// 0 divided by 0 counts as 0.
LOCKSTEP_EXPORT MetricPtr precision(const ClassOptions& options = {});
LOCKSTEP_EXPORT MetricPtr recall(const ClassOptions& options = {});
LOCKSTEP_EXPORT MetricPtr f_beta(const ClassOptions& options = {});

/// Reports the share of correct predictions. `confusion_matrix` makes the whole matrix of its `Meters::sums`.
struct ConfusionOptions {
  std::int64_t classes = 2;                 ///< how many there are
  std::string name = "confusion_accuracy";  ///< name of the value
};
/// Counts each pair of a target's class and a predicted one.
LOCKSTEP_EXPORT MetricPtr confusion(const ConfusionOptions& options);
/// Row: class of the target. Column: predicted class.
LOCKSTEP_EXPORT std::vector<std::vector<std::int64_t>> confusion_matrix(std::span<const double> sums);

/// Which area `auc` measures.
enum class Curve {
  Roc,  ///< area under true positives over false positives
  Pr,   ///< average precision
};
/// Options of `auc`.
struct AucOptions {
  Curve curve = Curve::Roc;  ///< which area
  int thresholds = 200;      ///< number of ends of bins
  bool from_logits = false;  ///< a sigmoid maps the output to 0..1 first
  std::string name = {};     ///< name of the value; empty: "auc" or "pr_auc"
  /// Keeps all scores, which need not be between 0 and 1, and computes the exact area at the end of the epoch; there is no value
  /// before. Takes 8 bytes per example on the replica (16 if scores are float64), and at the end of the epoch 16 bytes per example of
  /// all workers on each worker.
  bool exact = false;
};
/// Unless `.exact`, scores from 0 to 1 are counted in `thresholds` - 1 bins of equal width, and scores in one bin count as equal. With
/// P positives and N negatives, of which p and n are in bin b, the error of the ROC area is at most the sum of p*n over all bins,
/// divided by 2*P*N; scores on the grid k / (thresholds - 1) give the exact area. NaN if a score is NaN or a class does not occur.
LOCKSTEP_EXPORT MetricPtr auc(const AucOptions& options = {});

/// Over all elements of outputs and targets of the same shape.
LOCKSTEP_EXPORT MetricPtr mse(std::string name = "mse");
LOCKSTEP_EXPORT MetricPtr mae(std::string name = "mae");
LOCKSTEP_EXPORT MetricPtr rmse(std::string name = "rmse");
/// Sums of squares in float64: with targets of mean m and deviation s it has about 16 - 2*log10(|m|/s) digits.
LOCKSTEP_EXPORT MetricPtr r2(std::string name = "r2");

/// The mean over rows of the cosine between output and target, along dimension 1. A row of zeros counts as 0.
LOCKSTEP_EXPORT MetricPtr cosine_similarity(std::string name = "cosine_similarity");

/// Options of `perplexity`.
struct PerplexityOptions {
  std::int64_t ignore_index = -100;  ///< targets that do not count, such as padding
  std::string name = "perplexity";   ///< name of the value
};
/// exp of the mean cross entropy, of logits with classes in dimension 1 and class numbers as targets.
LOCKSTEP_EXPORT MetricPtr perplexity(const PerplexityOptions& options = {});

/// The mean of what `f(output, target)` returns: a tensor in which each element counts once, such as one value for each row.
using PerExample = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
/// The mean of what `f` returns.
LOCKSTEP_EXPORT MetricPtr custom(std::string name, PerExample f);

}  // namespace lockstep::train::metrics
