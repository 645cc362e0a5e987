#include "apps/lockstep/plot.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <set>

#include "apps/lockstep/outcome.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/atomic_file.h"
#include "lockstep/data/format/listed.h"
#include "lockstep/train/logs/chart.h"

namespace lockstep::app {
namespace {

using train::Curve;

/// Names of the runs: the last part of each path, or all of it if they would be equal. A single run needs none.
std::vector<std::string> run_names(const std::vector<std::string>& logs) {
  if (logs.size() == 1) return {""};
  std::vector<std::string> names;
  for (const std::string& log : logs) {
    std::filesystem::path path = std::filesystem::path(log).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();  // "runs/a/"
    names.push_back(path.filename().string());
  }
  return std::set(names.begin(), names.end()).size() == names.size() ? names : logs;
}

void keep_only(std::vector<Curve>& curves, const std::vector<std::string>& metrics) {
  std::set<std::string> there;
  for (const Curve& curve : curves) there.insert(train::detail::metric_of(curve.name));
  for (const std::string& metric : metrics) {
    if (there.contains(metric)) continue;
    throw NotFound(errors::kBadOption, {.what = str("no log has a metric '", metric, "'"),
                                        .help = str("there are: ", data::listed(there))});
  }
  std::erase_if(curves, [&](const Curve& curve) {
    return std::ranges::find(metrics, train::detail::metric_of(curve.name)) == metrics.end();
  });
}

}  // namespace

int plot(const PlotRequest& request) {
  std::vector<Curve> curves;
  const auto names = run_names(request.logs);
  for (std::size_t i = 0; i < names.size(); ++i)
    std::ranges::move(train::read_curves(request.logs[i], names[i]), std::back_inserter(curves));
  if (!request.only.empty()) keep_only(curves, request.only);
  const std::string svg =
      svg_of(curves, {.title = request.title, .smoothing = request.smoothing, .log_scale = request.log_scale});
  if (request.out == "-") {
    std::cout << svg;
    return kOk;
  }
  data::AtomicFile file(request.out, svg.size());
  file.append(svg);
  file.commit();
  std::cout << request.out << ": " << counted(std::ssize(curves), "curve") << '\n';
  return kOk;
}

}  // namespace lockstep::app
