#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/cluster_description.h"
#include "lockstep/comm/cluster/cluster_spec.h"

namespace lockstep {

/// Whose address `ClusterResolver::master` returns; what is not given is the resolver's own.
struct MasterQuery {
  std::optional<std::string> task_type = {};
  std::optional<std::int64_t> task_id = {};
  std::optional<std::string> rpc_layer = {};  ///< put in front: "grpc" gives "grpc://host:port"
};

/// Says what the cluster is and which task of it this process is. Derive from it to ask a system of your own.
class LOCKSTEP_EXPORT ClusterResolver {
 public:
  virtual ~ClusterResolver() = default;

  virtual ClusterSpec cluster_spec() const = 0;
  virtual std::optional<std::string> task_type() const { return {}; }
  virtual std::optional<std::int64_t> task_id() const { return {}; }
  /// Accelerators of each worker by type, {"GPU": 2}; empty: whatever the worker finds.
  virtual std::map<std::string, int> num_accelerators() const { return {}; }

  // Kept for programs that come from TensorFlow; Lockstep uses none of them.
  virtual std::optional<std::string> rpc_layer() const { return {}; }
  virtual std::optional<std::string> environment() const { return ""; }
  /// The address of a task: of the one that is asked for if both its type and its id are given.
  virtual std::string master(const MasterQuery& query = {}) const;
};

/// The place of this process in the resolver's cluster, checked.
LOCKSTEP_EXPORT ClusterDescription describe_cluster(const ClusterResolver& resolver);

struct TFConfigOptions {
  // What is given here counts instead of what TF_CONFIG says.
  std::optional<std::string> task_type = {};
  std::optional<std::int64_t> task_id = {};
  std::optional<std::string> rpc_layer = {};
  std::optional<std::string> environment = {};
};

/// Reads the environment variable TF_CONFIG, anew at each call. Not set: no cluster.
class LOCKSTEP_EXPORT TFConfigClusterResolver final : public ClusterResolver {
 public:
  explicit TFConfigClusterResolver(TFConfigOptions options = {}) : options_(std::move(options)) {}

  ClusterSpec cluster_spec() const override;
  std::optional<std::string> task_type() const override;
  std::optional<std::int64_t> task_id() const override;
  std::optional<std::string> rpc_layer() const override;
  std::optional<std::string> environment() const override { return options_.environment; }
  std::string master(const MasterQuery& query = {}) const override;

 private:
  TFConfigOptions options_;
};

struct SimpleClusterOptions {
  std::string master = {};
  std::optional<std::string> task_type = {};
  std::optional<std::int64_t> task_id = {};
  std::string environment = {};
  std::map<std::string, int> num_accelerators = {};
  std::optional<std::string> rpc_layer = {};
};

/// A cluster that the program itself knows.
///
///     ls::SimpleClusterResolver resolver(ls::ClusterSpec({{"worker", {"host0:2222", "host1:2222"}}}),
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
  std::optional<std::string> environment() const override { return options_.environment; }
  std::string master(const MasterQuery& query = {}) const override;

 private:
  ClusterSpec cluster_;
  SimpleClusterOptions options_;
};

struct UnionClusterOptions {
  std::optional<std::string> task_type = {};
  std::optional<std::int64_t> task_id = {};
  std::optional<std::string> rpc_layer = {};
};

/// Several clusters as one. Lists of tasks are concatenated; where one of the resolvers numbers the tasks of a job, all
/// numbers of that job must be different. Everything else is the first resolver's.
class LOCKSTEP_EXPORT UnionClusterResolver final : public ClusterResolver {
 public:
  explicit UnionClusterResolver(std::vector<std::shared_ptr<const ClusterResolver>> resolvers,
                                UnionClusterOptions options = {});

  ClusterSpec cluster_spec() const override;
  std::optional<std::string> task_type() const override;
  std::optional<std::int64_t> task_id() const override;
  std::map<std::string, int> num_accelerators() const override { return first().num_accelerators(); }
  std::optional<std::string> rpc_layer() const override;
  std::optional<std::string> environment() const override { return first().environment(); }
  std::string master(const MasterQuery& query = {}) const override;

 private:
  const ClusterResolver& first() const { return *resolvers_.front(); }

  std::vector<std::shared_ptr<const ClusterResolver>> resolvers_;
  UnionClusterOptions options_;
};

}  // namespace lockstep
