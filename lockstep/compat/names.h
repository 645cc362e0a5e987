#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/named_value.h"
#include "lockstep/base/vocabulary.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/contrib/variable_aggregation.h"
#include "lockstep/data/auto_shard_policy.h"
#include "lockstep/data/distribute/input_options.h"
#include "lockstep/data/input_context.h"
#include "lockstep/data/stage_options.h"
#include "lockstep/strategy/axis.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/values/per_replica.h"

namespace lockstep::compat {

/// TensorFlow's names for the calls mentioned in errors of the main API: v1's, and those on v2's page.
LOCKSTEP_EXPORT Vocabulary v1_words();
LOCKSTEP_EXPORT Vocabulary v2_words();

/// `f()` in the terms of v1, if no strategy is available to choose them.
template <class F>
decltype(auto) in_v1_words(F&& f) {
  const VocabularyScope words(v1_words());
  return f();
}

}  // namespace lockstep::compat

// The small types on TensorFlow's pages. v1 has them all.
namespace lockstep::compat::names {

using lockstep::CommunicationOptions;
using lockstep::CrossDeviceOps;
using lockstep::DistributedValues;
using lockstep::HierarchicalCopyAllReduce;
using lockstep::InputContext;
using lockstep::Mirrored;
using lockstep::NcclAllReduce;
using lockstep::PerReplica;
using lockstep::ReductionToOneDevice;
using lockstep::ValueContext;

/// Python's None, for optional arguments.
inline constexpr std::nullopt_t None = std::nullopt;

/// SUM or MEAN; their names are accepted too, in any case: `strategy.reduce("sum", value)`.
class ReduceOp : public NamedValue<lockstep::ReduceOp> {
 public:
  using NamedValue::NamedValue;
  template <std::convertible_to<std::string> Name>
  ReduceOp(const Name& name)  // NOLINT(google-explicit-constructor)
      : NamedValue(in_v1_words([&] { return parse_reduce_op(name); })) {}
  static const ReduceOp SUM, MEAN;
  /// For `MultiStepContext::set_last_step_output`, which takes both.
  operator contrib::VariableAggregation() const {  // NOLINT(google-explicit-constructor)
    return *this == lockstep::ReduceOp::Sum ? Aggregation::Sum : Aggregation::Mean;
  }
};
inline constexpr ReduceOp ReduceOp::SUM = lockstep::ReduceOp::Sum;
inline constexpr ReduceOp ReduceOp::MEAN = lockstep::ReduceOp::Mean;

/// How workers exchange values; also from a name, in any case.
class CollectiveCommunication : public NamedValue<Implementation> {
 public:
  using NamedValue::NamedValue;
  template <std::convertible_to<std::string> Name>
  CollectiveCommunication(const Name& name)  // NOLINT(google-explicit-constructor)
      : NamedValue(in_v1_words([&] { return parse_implementation(name); })) {}
  static const CollectiveCommunication AUTO, RING, NCCL;
};
inline constexpr CollectiveCommunication CollectiveCommunication::AUTO = Implementation::Auto;
inline constexpr CollectiveCommunication CollectiveCommunication::RING = Implementation::Ring;
inline constexpr CollectiveCommunication CollectiveCommunication::NCCL = Implementation::Nccl;
using CommunicationImplementation = CollectiveCommunication;  ///< later name in TensorFlow

/// Older form of CommunicationOptions, convertible to it.
struct CollectiveHints {
  std::int64_t bytes_per_pack = 0;             ///< as in CommunicationOptions
  std::optional<double> timeout_seconds = {};  ///< as in CommunicationOptions

  operator CommunicationOptions() const {  // NOLINT(google-explicit-constructor)
    return {.bytes_per_pack = bytes_per_pack, .timeout_seconds = timeout_seconds};
  }
};

/// Whether an input function makes a pipeline per worker or per replica.
class InputReplicationMode : public NamedValue<ReplicationMode> {
 public:
  using NamedValue::NamedValue;
  static const InputReplicationMode PER_WORKER, PER_REPLICA;
};
inline constexpr InputReplicationMode InputReplicationMode::PER_WORKER = ReplicationMode::PerWorker;
inline constexpr InputReplicationMode InputReplicationMode::PER_REPLICA = ReplicationMode::PerReplica;

/// How a dataset's files or rows are divided among workers.
class AutoShardPolicy : public NamedValue<lockstep::AutoShardPolicy> {
 public:
  using NamedValue::NamedValue;
  static const AutoShardPolicy AUTO, FILE, DATA, HINT, OFF;
};
inline constexpr AutoShardPolicy AutoShardPolicy::AUTO = lockstep::AutoShardPolicy::Auto;
inline constexpr AutoShardPolicy AutoShardPolicy::FILE = lockstep::AutoShardPolicy::File;
inline constexpr AutoShardPolicy AutoShardPolicy::DATA = lockstep::AutoShardPolicy::Data;
inline constexpr AutoShardPolicy AutoShardPolicy::HINT = lockstep::AutoShardPolicy::Hint;
inline constexpr AutoShardPolicy AutoShardPolicy::OFF = lockstep::AutoShardPolicy::Off;

/// How workers share the rows of a dataset. Batches are cut into one part per replica in any case.
struct DistributeOptions {
  bool auto_shard = true;                                     ///< TensorFlow 2.0: false is AutoShardPolicy::OFF
  AutoShardPolicy auto_shard_policy = AutoShardPolicy::AUTO;  ///< which rows each worker gets

  operator data::DatasetOptions() const {  // NOLINT(google-explicit-constructor)
    return {.auto_shard_policy = auto_shard ? auto_shard_policy : AutoShardPolicy::OFF};
  }
};

/// The counterpart of `tf.data.Options` for distribution.
///
///     Options options;
///     options.experimental_distribute.auto_shard = false;
///     dataset = dataset.with_options(options);
struct Options {
  DistributeOptions experimental_distribute = {};  ///< how workers share the rows

  operator data::DatasetOptions() const { return experimental_distribute; }  // NOLINT(google-explicit-constructor)
};

/// Options of `run`. They apply only to TPUs and have no effect here.
struct RunOptions {
  bool experimental_enable_dynamic_batch_size = true;   ///< not used: C++ has no graph with static shapes
  bool experimental_bucketizing_dynamic_shape = false;  ///< not used
};

/// The dimensions that a reduction covers inside each replica: None, one or several.
class Axis : public lockstep::Axis {
 public:
  using lockstep::Axis::Axis;
  Axis(std::nullopt_t) {}  // NOLINT(google-explicit-constructor)
};

}  // namespace lockstep::compat::names
