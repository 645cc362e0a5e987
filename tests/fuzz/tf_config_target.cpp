#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/cluster/cluster_description.h"
#include "lockstep/comm/cluster/slurm_resolver.h"
#include "lockstep/comm/cluster/tf_config.h"
#include "tests/fuzz/target.h"

using namespace lockstep;

namespace {

/// Runs `call`. Rejected text is an Error; any other exception is a finding.
template <class Call>
void try_out(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    fuzz_check(!error.text().what.empty() && !error.text().help.empty(), "errors have a description and help");
  }
}

void check_description(std::string_view text) {
  const ClusterSpec cluster = tf_config::cluster(text);
  fuzz_check(parse_cluster(to_string(cluster)) == cluster, "clusters can be read again");
  fuzz_check(difference(cluster, "a", cluster, "b").empty(), "a cluster does not differ from itself");
  const ClusterDescription place =
      describe_cluster(cluster, {.type = tf_config::task_type(text), .index = tf_config::task_index(text)});
  fuzz_check(place.id >= 0 && place.id < place.num_workers(), "ids are in range");
  for (const WorkerEntry& worker : place.workers) {
    fuzz_check(parse_address(to_string(worker.address)) == worker.address, "addresses can be read again");
  }
  fuzz_check(!place.workers_on_this_host().empty(), "a worker is on its own host");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<char> exact(data, data + size);
  const std::string_view text(exact.data(), exact.size());
  try_out([&] { check_description(text); });
  try_out([&] { tf_config::rpc_layer(text); });
  try_out([&] { tf_config::session_master(text); });
  try_out([&] { expand_hostlist(text); });
  try_out([&] { expand_tasks_per_node(text); });
  return 0;
}
