#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/export.h"

namespace lockstep {

/// The category of an error; the usual set, so that programs can decide how to react.
enum class Code {
  InvalidArgument,     ///< the value, shape, structure or name given is wrong
  FailedPrecondition,  ///< the call is valid, but not here or not now (wrong context, wrong order)
  OutOfRange,          ///< past the end
  NotFound,            ///< a file, tensor or name does not exist
  AlreadyExists,       ///< something with this name exists
  Unavailable,         ///< a peer is gone
  DeadlineExceeded,    ///< a wait ran into its deadline
  DataLoss,            ///< a file or memory is corrupt
  ResourceExhausted,   ///< no memory, disk space or thread is left
  Cancelled,           ///< stopped before it was done
  Unimplemented,       ///< a feature that does not exist here
  Internal,            ///< a bug in Lockstep
};

LOCKSTEP_EXPORT std::string_view to_string(Code code);  ///< "INVALID_ARGUMENT", ...

/// The parts of a message. `what` is one line that makes sense without the rest. Empty parts are not printed.
struct ErrorText {
  std::string what = {};   ///< what went wrong
  std::string where = {};  ///< which replica, step, operation
  std::string seen = {};   ///< the evidence: values, shapes, times
  std::string help = {};   ///< how to fix it
};

/// Base of every exception that Lockstep throws. `what()` prints as one block:
///
///     error[L201]: reduce must be called outside of the function given to run
///       where: reduce, on replica 1
///       help:  call strategy.reduce outside of the function given to run
///
/// The number identifies the kind of error and never changes; `explain(number)` describes it in detail. The text uses
/// the terms of the API that raises the error (base/vocabulary.h).
class LOCKSTEP_EXPORT Error : public std::exception {
 public:
  Error(Code code, int number, ErrorText text);

  const char* what() const noexcept override { return message_.c_str(); }
  /// The kind of failure, its number for `explain`, and the parts of the message.
  Code code() const noexcept { return code_; }
  int number() const noexcept { return number_; }
  const ErrorText& text() const noexcept { return text_; }

  /// Adds a place to `where`; used while an error propagates ("on replica 1").
  void add_where(const std::string& place);

  /// Throws a copy with its most derived type.
  [[noreturn]] virtual void raise() const { throw *this; }

 private:
  void format();

  Code code_;
  int number_;
  ErrorText text_;
  std::string message_;
};

namespace detail {
template <class Derived, Code kCode>
class TypedError : public Error {
 public:
  TypedError(int number, ErrorText text) : Error(kCode, number, std::move(text)) {}
  [[noreturn]] void raise() const override { throw static_cast<const Derived&>(*this); }
};
}  // namespace detail

#define LOCKSTEP_ERROR_TYPE(Name)                                                  \
  class LOCKSTEP_EXPORT Name final : public detail::TypedError<Name, Code::Name> { \
   public:                                                                         \
    using TypedError::TypedError;                                                  \
  }

LOCKSTEP_ERROR_TYPE(InvalidArgument);     ///< a value, shape, structure or name is wrong
LOCKSTEP_ERROR_TYPE(FailedPrecondition);  ///< a call in the wrong context or order
LOCKSTEP_ERROR_TYPE(OutOfRange);          ///< past the end
LOCKSTEP_ERROR_TYPE(NotFound);            ///< a file, tensor or name does not exist
LOCKSTEP_ERROR_TYPE(AlreadyExists);       ///< something with this name exists
LOCKSTEP_ERROR_TYPE(Unavailable);         ///< a peer is gone
LOCKSTEP_ERROR_TYPE(DeadlineExceeded);    ///< a wait ran into its deadline
LOCKSTEP_ERROR_TYPE(DataLoss);            ///< a file or memory is corrupt
LOCKSTEP_ERROR_TYPE(ResourceExhausted);   ///< no memory, disk space or thread is left
LOCKSTEP_ERROR_TYPE(Cancelled);           ///< stopped before it was done
LOCKSTEP_ERROR_TYPE(Unimplemented);       ///< a feature that does not exist here
LOCKSTEP_ERROR_TYPE(Internal);            ///< a bug in Lockstep

#undef LOCKSTEP_ERROR_TYPE

/// Kinds of mistakes, by number. The hundreds group them: 1xx peers and waiting, 2xx contexts and calls, 3xx
/// structures, shapes and devices, 4xx variables, 5xx models and optimizers (saved ones from 520), 6xx data (files from
/// 601, pipelines from 621, distribution from 651), 9xx bugs of our own.
namespace errors {
inline constexpr int kTimeout = 101;              ///< a replica did not reach a meeting in time
inline constexpr int kUnequalMeetings = 102;      ///< replicas made different numbers of merge calls or collectives
inline constexpr int kDifferentCollective = 103;  ///< replicas met in different operations, shapes or types
inline constexpr int kPeerLost = 104;             ///< another worker died or stopped answering
inline constexpr int kPeerMissing = 105;          ///< not all workers came when the job started
inline constexpr int kPortInUse = 106;            ///< a worker cannot have the address of its cluster entry
inline constexpr int kTaskTaken = 107;            ///< two processes have the same task index
inline constexpr int kDifferentClusters = 108;    ///< workers have different descriptions of the cluster
inline constexpr int kDifferentPrograms = 109;    ///< workers run different programs, models or optimizers
inline constexpr int kCollectiveMismatch = 110;   ///< workers called different collectives
inline constexpr int kJobKey = 111;               ///< the job key is missing, unreadable or does not match
inline constexpr int kStranger = 112;             ///< bytes at a port that did not come from a worker of this job
inline constexpr int kPeerFailed = 113;           ///< the program of another worker failed
inline constexpr int kEngineLoad = 114;           ///< the data engine between workers cannot be loaded
inline constexpr int kClusterDescription = 115;   ///< TF_CONFIG or another description of the cluster is wrong
inline constexpr int kSlurm = 116;                ///< the variables of a Slurm step are missing or wrong
inline constexpr int kChiefGone = 117;            ///< the worker that coordinates the job died, left or is cut off
inline constexpr int kOldIncarnation = 118;       ///< a worker of an earlier run of the job came back
inline constexpr int kWrongContext = 201;         ///< the call needs another context
inline constexpr int kMixedStrategies = 202;      ///< two strategies in one place
inline constexpr int kConcurrentRun = 203;        ///< a second run on one strategy at the same time
inline constexpr int kBadOption = 204;            ///< an option has a value that makes no sense
inline constexpr int kNotAvailable = 205;         ///< not built in, or not supported here
inline constexpr int kSeedInsideRun = 206;        ///< torch::manual_seed inside a replica function
inline constexpr int kNoThreads = 207;            ///< the system does not let Lockstep start a thread
inline constexpr int kStructure = 301;            ///< structures differ or do not fit
inline constexpr int kShape = 302;                ///< shapes, ranks or axes do not fit
inline constexpr int kDtype = 303;                ///< the element type does not fit
inline constexpr int kDevice = 304;               ///< a device name is unknown, doubled or missing
inline constexpr int kDestination = 305;          ///< the destinations of a reduction make no sense
inline constexpr int kNotReducible = 306;         ///< the value cannot be reduced this way
inline constexpr int kComponent = 307;            ///< a distributed value used where one component is needed
inline constexpr int kVariableMode = 401;         ///< synchronization or aggregation is not possible
inline constexpr int kVariableAssign = 402;       ///< this assignment is not possible
inline constexpr int kVariableName = 403;         ///< replicas created different variables
inline constexpr int kWrongModule = 501;          ///< a model is used in a way that replicas cannot share
inline constexpr int kOptimizer = 502;            ///< not possible with this optimizer, or not now
inline constexpr int kTornWeights = 503;          ///< an update failed half-way
inline constexpr int kNotFinite = 504;            ///< NaN or infinity in a gradient or loss
inline constexpr int kDrift = 505;                ///< weights, buffers or optimizer state differ between replicas
inline constexpr int kSavedState = 520;           ///< a saved file or a snapshot does not fit its target
inline constexpr int kFile = 601;                 ///< a file cannot be opened, read or written
inline constexpr int kNoFiles = 602;              ///< no file has a name like this
inline constexpr int kCompression = 603;          ///< compressed bytes are damaged
inline constexpr int kRecord = 604;               ///< a record of a file is damaged or cut off
inline constexpr int kExample = 605;              ///< bytes are not a valid tf.train.Example
inline constexpr int kFeature = 606;              ///< an Example lacks requested features
inline constexpr int kNpy = 607;                  ///< an npy file is damaged, or of an unsupported kind
inline constexpr int kCsv = 608;                  ///< a CSV record or field does not fit
inline constexpr int kSafetensors = 609;          ///< a safetensors file is damaged, or of an unsupported kind
inline constexpr int kPosition = 621;             ///< a position in a dataset cannot be saved or restored
inline constexpr int kCardinality = 622;          ///< a dataset's number of elements differs from the promised one
inline constexpr int kCacheFile = 623;            ///< the file of a cache does not fit, or is being written
inline constexpr int kSharding = 651;             ///< a dataset cannot be divided among workers this way
inline constexpr int kTooFewElements = 652;       ///< fewer files or elements than workers
inline constexpr int kNoMoreData = 653;           ///< past the last step of a distributed dataset
inline constexpr int kSignature = 654;            ///< an argument of run does not match its element_spec
inline constexpr int kInternal = 901;             ///< a bug in Lockstep
}  // namespace errors

/// One paragraph about a kind of mistake, for people; empty for an unknown number.
LOCKSTEP_EXPORT std::string_view explain(int number);

}  // namespace lockstep
