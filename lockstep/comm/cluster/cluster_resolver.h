#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/cluster_description.h"
#include "lockstep/comm/cluster/cluster_spec.h"

namespace lockstep {

/// Selects a task other than the resolver's own; unset fields are the resolver's.
struct TaskOptions {
  std::optional<std::string> task_type = {};  ///< the job
  std::optional<std::int64_t> task_id = {};   ///< the number within the job
  std::optional<std::string> rpc_layer = {};  ///< put in front of addresses: "grpc" gives "grpc://host:port"
};

/// Describes the cluster and this process's task in it. Derive from it to query your own system.
class LOCKSTEP_EXPORT ClusterResolver {
 public:
  virtual ~ClusterResolver() = default;

  /// The cluster; empty if there is none.
  virtual ClusterSpec cluster_spec() const = 0;
  /// This process's job and its number within the job, if they are known.
  virtual std::optional<std::string> task_type() const { return {}; }
  virtual std::optional<std::int64_t> task_id() const { return {}; }
  /// Accelerators of each worker by type, {"GPU": 2}; empty: all that the worker finds.
  virtual std::map<std::string, int> num_accelerators() const { return {}; }

  /// Kept for programs that come from TensorFlow; Lockstep uses none of them.
  virtual std::optional<std::string> rpc_layer() const { return {}; }
  virtual std::string environment() const { return ""; }
  virtual std::string master(const TaskOptions& task = {}) const;  ///< the address of a task
};

/// The place of this process in the resolver's cluster, validated.
LOCKSTEP_EXPORT ClusterDescription describe_cluster(const ClusterResolver& resolver);

/// Reads the environment variable TF_CONFIG again at each call. Not set: no cluster.
class LOCKSTEP_EXPORT TFConfigClusterResolver final : public ClusterResolver {
 public:
  explicit TFConfigClusterResolver(TaskOptions options = {}) : options_(std::move(options)) {}

  ClusterSpec cluster_spec() const override;
  std::optional<std::string> task_type() const override;
  std::optional<std::int64_t> task_id() const override;
  std::optional<std::string> rpc_layer() const override;
  std::string master(const TaskOptions& task = {}) const override;

 private:
  TaskOptions options_;
};

/// Options of a SimpleClusterResolver.
struct SimpleClusterOptions {
  std::optional<std::string> task_type = {};         ///< the job of this process
  std::optional<std::int64_t> task_id = {};          ///< its number within the job
  std::map<std::string, int> num_accelerators = {};  ///< devices by type, {"GPU": 2}; empty: whatever the worker finds
  std::optional<std::string> rpc_layer = {};         ///< put in front of addresses
  std::string environment = {};                      ///< returned by `environment()`, not used
  std::string master = {};                           ///< returned by `master()`, not used
};

/// A cluster defined by the program.
///
///     ls::SimpleClusterResolver resolver(ls::ClusterSpec{{"worker", {"host0:2222", "host1:2222"}}},
///                                        {.task_type = "worker", .task_id = 1});
class LOCKSTEP_EXPORT SimpleClusterResolver final : public ClusterResolver {
 public:
  explicit SimpleClusterResolver(ClusterSpec cluster, SimpleClusterOptions options = {})
      : cluster_(std::move(cluster)), options_(std::move(options)) {}

  ClusterSpec cluster_spec() const override { return cluster_; }
  std::optional<std::string> task_type() const override { return options_.task_type; }
  std::optional<std::int64_t> task_id() const override { return options_.task_id; }
  std::map<std::string, int> num_accelerators() const override { return options_.num_accelerators; }
  std::optional<std::string> rpc_layer() const override { return options_.rpc_layer; }
  std::string environment() const override { return options_.environment; }
  std::string master(const TaskOptions& task = {}) const override;

 private:
  ClusterSpec cluster_;
  SimpleClusterOptions options_;
};

/// Several clusters as one. Lists of tasks are concatenated; if one of the resolvers numbers the tasks of a job, all
/// numbers of that job must differ. Everything else is the first resolver's.
class LOCKSTEP_EXPORT UnionClusterResolver final : public ClusterResolver {
 public:
  explicit UnionClusterResolver(std::vector<std::shared_ptr<const ClusterResolver>> resolvers,
                                TaskOptions options = {});

  ClusterSpec cluster_spec() const override;
  std::optional<std::string> task_type() const override;
  std::optional<std::int64_t> task_id() const override;
  std::map<std::string, int> num_accelerators() const override { return resolvers_[0]->num_accelerators(); }
  std::optional<std::string> rpc_layer() const override;
  std::string environment() const override { return resolvers_[0]->environment(); }
  std::string master(const TaskOptions& task = {}) const override;

 private:
  std::vector<std::shared_ptr<const ClusterResolver>> resolvers_;
  TaskOptions options_;
};

}  // namespace lockstep
