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

/// An empty name counts as not given.
std::optional<std::string> chosen(const std::optional<std::string>& asked, const std::optional<std::string>& own) {
  return asked.value_or("").empty() ? own : asked;
}

}  // namespace

std::string ClusterResolver::master(const TaskOptions& task) const {
  const auto type = task.task_type ? task.task_type : task_type();
  const auto id = task.task_id ? task.task_id : task_id();
  return type && id ? url(cluster_spec().task_address(*type, *id), chosen(task.rpc_layer, rpc_layer())) : "";
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

std::string TFConfigClusterResolver::master(const TaskOptions& task) const {
  if (const auto given = tf_config::session_master(tf_config_text())) return *given;
  const ClusterSpec cluster = cluster_spec();
  const auto jobs = cluster.jobs();
  // A single task needs no address.
  if (jobs.empty() || (jobs.size() == 1 && cluster.job_tasks(jobs.front()).size() == 1)) return "";
  const auto type = task.task_type ? task.task_type : task_type();
  const auto id = task.task_id ? task.task_id : task_id();
  if (type && id) return url(cluster.task_address(*type, *id), task.rpc_layer ? task.rpc_layer : rpc_layer());
  refuse_cluster("the type or the index of the task is not known",
                 "name a task: master({.task_type = \"worker\", .task_id = 0})");
}

std::string SimpleClusterResolver::master(const TaskOptions& task) const {
  if (task.task_type && task.task_id) return ClusterResolver::master(task);
  return url(options_.master, chosen(task.rpc_layer, options_.rpc_layer));
}

UnionClusterResolver::UnionClusterResolver(std::vector<std::shared_ptr<const ClusterResolver>> resolvers,
                                           TaskOptions options)
    : resolvers_(std::move(resolvers)), options_(std::move(options)) {
  if (resolvers_.empty() || std::ranges::find(resolvers_, nullptr) != resolvers_.end()) {
    refuse_cluster("a union needs at least one resolver, and none that is null",
                   "give UnionClusterResolver the resolvers whose clusters it unites");
  }
}

ClusterSpec UnionClusterResolver::cluster_spec() const {
  std::vector<ClusterSpec> clusters;
  std::set<std::string> numbered;  // a job without tasks counts as numbered too
  for (const auto& resolver : resolvers_) {
    clusters.push_back(resolver->cluster_spec());
    for (const std::string& job : clusters.back().jobs()) {
      if (!clusters.back().is_dense(job)) numbered.insert(job);
    }
  }
  std::map<std::string, ClusterSpec::Tasks> merged;
  for (const ClusterSpec& cluster : clusters) {
    for (const std::string& job : cluster.jobs()) {
      ClusterSpec::Tasks& tasks = merged[job];
      const int offset = numbered.contains(job) ? 0 : static_cast<int>(tasks.size());
      for (const auto& [index, address] : cluster.tasks(job)) {
        if (tasks.emplace(offset + index, address).second) continue;
        refuse_cluster(str("two clusters of a union list ", shown(job), ' ', index),
                       "give every task of a job an index of its own, or list the tasks without indices");
      }
    }
  }
  return ClusterSpec::of_tasks(std::move(merged));
}

std::optional<std::string> UnionClusterResolver::task_type() const {
  return chosen(options_.task_type, resolvers_[0]->task_type());
}

std::optional<std::int64_t> UnionClusterResolver::task_id() const {
  return options_.task_id ? options_.task_id : resolvers_[0]->task_id();
}

std::optional<std::string> UnionClusterResolver::rpc_layer() const {
  return chosen(options_.rpc_layer, resolvers_[0]->rpc_layer());
}

std::string UnionClusterResolver::master(const TaskOptions& task) const {
  if (!task.task_type || !task.task_id) return resolvers_[0]->master({.rpc_layer = task.rpc_layer});
  return url(cluster_spec().task_address(*task.task_type, *task.task_id), chosen(task.rpc_layer, options_.rpc_layer));
}

}  // namespace lockstep
