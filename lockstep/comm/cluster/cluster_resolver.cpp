#include "lockstep/comm/cluster/cluster_resolver.h"

#include <cstdlib>
#include <set>

#include "lockstep/comm/cluster/refusal.h"
#include "lockstep/comm/cluster/tf_config.h"

namespace lockstep {
namespace {

std::string tf_config_text() {
  const char* text = std::getenv("TF_CONFIG");
  return text ? text : "{}";
}

std::string url(const std::string& address, const std::optional<std::string>& rpc_layer) {
  return rpc_layer.value_or("").empty() ? address : str(*rpc_layer, "://", address);
}

/// An empty protocol counts as none given.
std::optional<std::string> chosen(const std::optional<std::string>& asked, const std::optional<std::string>& own) {
  return asked.value_or("").empty() ? own : asked;
}

std::string address_of(const ClusterSpec& cluster, const std::optional<std::string>& type,
                       const std::optional<std::int64_t>& id) {
  if (type && id) return cluster.task_address(*type, *id);
  refuse_cluster(str("the ", type ? "index" : "type", " of the task is not known"), "",
                 "name a task: master({.task_type = \"worker\", .task_id = 0})",
                 str("cluster ", shown(to_string(cluster))));
}

/// Jobs of which some resolver lists the tasks by number. A job without tasks is neither form; it counts as numbered.
std::set<std::string> numbered_jobs(const std::vector<ClusterSpec>& clusters) {
  std::set<std::string> numbered;
  for (const ClusterSpec& cluster : clusters) {
    for (const std::string& job : cluster.jobs()) {
      if (!cluster.is_dense(job)) numbered.insert(job);
    }
  }
  return numbered;
}

}  // namespace

std::string ClusterResolver::master(const MasterQuery& query) const {
  const auto type = query.task_type ? query.task_type : task_type();
  const auto id = query.task_id ? query.task_id : task_id();
  return type && id ? url(cluster_spec().task_address(*type, *id), chosen(query.rpc_layer, rpc_layer())) : "";
}

ClusterDescription describe_cluster(const ClusterResolver& resolver) {
  const ClusterSpec cluster = resolver.cluster_spec();
  if (cluster.empty()) return {};
  return describe_cluster(cluster, {.type = resolver.task_type(), .index = resolver.task_id()});
}

ClusterSpec TFConfigClusterResolver::cluster_spec() const { return tf_config::cluster(tf_config_text()); }

std::optional<std::string> TFConfigClusterResolver::task_type() const {
  return options_.task_type ? options_.task_type : tf_config::task_type(tf_config_text());
}

std::optional<std::int64_t> TFConfigClusterResolver::task_id() const {
  return options_.task_id ? options_.task_id : tf_config::task_index(tf_config_text());
}

std::optional<std::string> TFConfigClusterResolver::rpc_layer() const {
  return options_.rpc_layer ? options_.rpc_layer : tf_config::rpc_layer(tf_config_text());
}

std::string TFConfigClusterResolver::master(const MasterQuery& query) const {
  if (const auto given = tf_config::session_master(tf_config_text())) return *given;
  const ClusterSpec cluster = cluster_spec();
  const auto jobs = cluster.jobs();
  // A task that is alone needs no address.
  if (jobs.empty() || (jobs.size() == 1 && cluster.job_tasks(jobs.front()).size() == 1)) return "";
  const auto type = query.task_type ? query.task_type : task_type();
  const auto id = query.task_id ? query.task_id : task_id();
  return url(address_of(cluster, type, id), query.rpc_layer ? query.rpc_layer : rpc_layer());
}

std::string SimpleClusterResolver::master(const MasterQuery& query) const {
  const bool named = query.task_type && query.task_id;
  const std::string address = named ? cluster_.task_address(*query.task_type, *query.task_id) : options_.master;
  return url(address, chosen(query.rpc_layer, options_.rpc_layer));
}

UnionClusterResolver::UnionClusterResolver(std::vector<std::shared_ptr<const ClusterResolver>> resolvers,
                                           UnionClusterOptions options)
    : resolvers_(std::move(resolvers)), options_(std::move(options)) {
  bool complete = !resolvers_.empty();
  for (const auto& each : resolvers_) complete = complete && each;
  if (!complete) {
    refuse_cluster(
        resolvers_.empty() ? "a union needs at least one resolver, got none" : "a resolver of a union is null", "",
        "give UnionClusterResolver the resolvers whose clusters it unites");
  }
}

ClusterSpec UnionClusterResolver::cluster_spec() const {
  std::vector<ClusterSpec> clusters;
  for (const auto& resolver : resolvers_) clusters.push_back(resolver->cluster_spec());
  const std::set<std::string> numbered = numbered_jobs(clusters);
  std::map<std::string, ClusterSpec::Tasks> merged;
  for (const ClusterSpec& cluster : clusters) {
    for (const std::string& job : cluster.jobs()) {
      ClusterSpec::Tasks& tasks = merged[job];
      const int offset = numbered.contains(job) ? 0 : static_cast<int>(tasks.size());
      for (const auto& [index, address] : cluster.tasks(job)) {
        const auto [existing, is_new] = tasks.emplace(offset + index, address);
        if (is_new) continue;
        refuse_cluster(str("two clusters of a union list ", shown(job), ' ', index), "",
                       "give every task of a job an index of its own, or list the tasks without indices",
                       str(shown(existing->second), " and ", shown(address)));
      }
    }
  }
  return ClusterSpec::of_tasks(std::move(merged));
}

std::optional<std::string> UnionClusterResolver::task_type() const {
  return chosen(options_.task_type, first().task_type());
}

std::optional<std::int64_t> UnionClusterResolver::task_id() const {
  return options_.task_id ? options_.task_id : first().task_id();
}

std::optional<std::string> UnionClusterResolver::rpc_layer() const {
  return chosen(options_.rpc_layer, first().rpc_layer());
}

std::string UnionClusterResolver::master(const MasterQuery& query) const {
  if (!query.task_type || !query.task_id) return first().master({.rpc_layer = query.rpc_layer});
  return url(cluster_spec().task_address(*query.task_type, *query.task_id),
             chosen(query.rpc_layer, options_.rpc_layer));
}

}  // namespace lockstep
