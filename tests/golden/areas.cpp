#include "tests/golden/areas.h"

namespace lockstep::golden {

json run_area(const Case& given) {
  static const std::map<std::string, json (*)(const Case&)> kRunners = {
      {"all_gather", run_all_gather},
      {"all_reduce", run_all_reduce},
      {"assign", run_steps},
      {"batch_reduce", run_batch_reduce},
      {"broadcast", run_broadcast},
      {"context", run_context},
      {"create", run_create},
      {"gather", run_gather},
      {"input_context", run_input_context},
      {"merge_call", run_merge_call},
      {"pack", run_pack},
      {"reduce", run_reduce},
      {"reduce_axis", run_reduce},
      {"regroup", run_regroup},
      {"scatter", run_steps},
      {"sync_on_read", run_steps},
      {"update", run_steps},
      {"values_from_function", run_values_from_function},
  };
  const auto runner = kRunners.find(given.area());
  if (runner == kRunners.end()) unknown_value("area", given.area());
  return runner->second(given);
}

}  // namespace lockstep::golden
