#include <algorithm>
#include <array>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

struct Explanation {
  int number;
  std::string_view text;
};

constexpr std::array kExplanations{
    Explanation{
        errors::kTimeout,
        "Replicas meet in every merge call, collective and optimizer step. One or more of them did not arrive before "
        "the deadline. The message names who was missing and what the others were waiting in. Usual causes: an endless "
        "loop or a blocking read in the replica function, a replica that left the function early, or a step that is "
        "slower than the timeout allows. Look at what the named replica was doing; raise timeout_seconds if it was "
        "only slow."},
    Explanation{
        errors::kUnequalMeetings,
        "Every replica must make the same merge calls and collectives in the same order. Here one replica finished its "
        "function while others still waited for it in a meeting. Usual causes: a call inside an `if` or a loop that "
        "depends on the replica's data, or an early return, such as one that skips an optimizer's minimize where the "
        "replica's batch is empty. Let all replicas take part; one with nothing to add contributes zeros, and a loss "
        "of zero rows is a loss like any other."},
    Explanation{
        errors::kDifferentCollective,
        "Replicas met, but not for the same thing: the operation, the shape, the element type or the name differs "
        "between them. Nothing was computed. Usual causes: two calls in different order on different replicas, or "
        "tensors whose shape depends on the replica's data. The message shows what each replica brought."},
    Explanation{
        errors::kWrongContext,
        "Some calls belong inside the function given to `run` (replica context: all_reduce, merge_call, the replica's "
        "id), others outside of it (cross-replica context: run, reduce, gather, update). This call was made on the "
        "wrong side. Inside `run`, `merge_call` is the way to the other side."},
    Explanation{
        errors::kMixedStrategies,
        "A value, variable or scope of one strategy was used with another strategy. A strategy can only act on what "
        "was made under it. Use one strategy object for a model, its optimizer and its data; leave the scope of one "
        "strategy before entering another's."},
    Explanation{
        errors::kConcurrentRun,
        "A strategy has one set of replica threads and runs one function at a time. A second thread called `run` while "
        "a first was still inside. Call `run` from one thread, guard it with a mutex, or make one strategy per thread."},
    Explanation{
        errors::kBadOption,
        "An option has a value outside of what it can mean, such as a negative size or a timeout that is not a number. "
        "The message names the option and the values it takes."},
    Explanation{
        errors::kNotAvailable,
        "What was asked for exists in Lockstep but not in this build or on this machine: an engine that was not "
        "compiled in, or a device that the linked LibTorch does not know. The message names the build option or the "
        "device that is missing."},
    Explanation{
        errors::kSeedInsideRun,
        "torch::manual_seed was called inside a replica function. All threads of LibTorch share that generator, so the "
        "result would depend on timing. Each replica has its own stream already, derived from the job's seed: set the "
        "seed once, before the strategy is made, or by the strategy's options."},
    Explanation{
        errors::kNoThreads,
        "The system refused to start a thread that Lockstep needs: a replica's own, or one that reads a dataset ahead. "
        "The limits on processes (ulimit -u), on memory (ulimit -v), or of a container are reached. Use fewer replicas "
        "or parallel calls, or raise the limit. Trying again later is safe: nothing was read or computed."},
    Explanation{
        errors::kStructure,
        "Values that belong together have different structures: another number of elements in a tuple or list, other "
        "keys in a map, a tensor on one side and a container on the other. Replicas must return the same structure. "
        "The message names the place where they differ."},
    Explanation{
        errors::kShape,
        "Shapes, ranks or axes do not fit together: components of different shape in a reduction, an axis that a "
        "tensor does not have, or a scalar where rows are needed. The message shows the shapes."},
    Explanation{
        errors::kDtype,
        "The element type does not fit the operation, or differs between replicas. Sums exist for integers and "
        "floating types, not for bool; convert before the call (for bool, to int64 counts and keeps the meaning "
        "clear)."},
    Explanation{
        errors::kDevice,
        "A device name could not be read, occurs twice, or names something that is not in this process. Names look "
        "like \"cpu:0\", \"gpu:1\" or \"/job:worker/task:0/device:GPU:0\". Each replica needs its own name; \"cpu:0\" "
        "and \"cpu:1\" are logical devices that share the machine's cores. A strategy over several machines is "
        "MultiWorkerMirroredStrategy."},
    Explanation{
        errors::kDestination,
        "The destinations of a reduction say where its result is wanted: a device name, a list of them, a variable or "
        "a distributed value. The ones given are empty, unknown, or not the same for all values of one batch."},
    Explanation{
        errors::kNotReducible,
        "The value cannot be reduced this way. Tensors, sparse rows and numbers can be; a plain value that is not the "
        "same on all replicas, a string or an unknown type cannot. Return what should be reduced from the replica "
        "function, so that it has one component per replica."},
    Explanation{
        errors::kComponent,
        "A distributed value has one component per replica. It was used where a single value is needed and it is not "
        "clear which is meant, or a component was asked for that does not exist. Inside `run` the replica's own "
        "component is taken; outside, use reduce, gather, local_results or an index."},
    Explanation{
        errors::kVariableMode,
        "A variable's synchronization (when copies are made equal) and aggregation (how) must fit together: a variable "
        "that is synchronized on read must not be trainable, and one without synchronization cannot live on several "
        "replicas. The message names the combination and the ones that work."},
    Explanation{
        errors::kVariableAssign,
        "This assignment would leave the copies of a variable different, or its result is not defined. From inside a "
        "replica a mirrored variable needs an aggregation (sum, mean, only the first replica), by which the replicas' "
        "values become one; from outside, assign one value to all."},
    Explanation{
        errors::kVariableName,
        "Replicas created different variables, or the same ones in another order. Variables made inside `run` must be "
        "the same on every replica. Make them before `run`, or leave nothing that depends on the replica around their "
        "creation."},
    Explanation{
        errors::kWrongModule,
        "Every replica has a module of its own, and `model->` inside `run` is the one of the replica that asks. Here a "
        "module was used in a way that replicas cannot share: taken outside of `run` and used inside, used by another "
        "replica's thread, or built differently on different replicas. Take `model->` inside `run`, and let the same "
        "arguments build the same parameters."},
    Explanation{
        errors::kOptimizer,
        "The optimizer cannot do this, or not now: options that differ between replicas, a step in the middle of an "
        "accumulation, a parameter that it does not know. The message says which rule was broken. Change options "
        "through the mirrored optimizer, which passes them on to every replica."},
    Explanation{
        errors::kTornWeights,
        "An update failed half-way, so some weights are of the new step and some of the old one. Training on would "
        "hide that. Restore the last checkpoint, or make the model and its optimizer anew; the first error says why "
        "the update failed."},
    Explanation{
        errors::kNotFinite,
        "A gradient or a loss is NaN or infinite. The weights were not touched. Usual causes: a learning rate that is "
        "too high, a division by zero or a logarithm of zero in the loss, overflow in 16-bit types without loss "
        "scaling, or bad values in the data. The message names the first parameter concerned."},
    Explanation{
        errors::kDrift,
        "Replicas compared digests of what should be equal on all of them, and one holds something else. Either code "
        "wrote to the module of one replica only, or memory has gone bad. What was trained since the last comparison "
        "that found no difference cannot be trusted. Buffers of ordinary batch-norm layers do differ: compare them "
        "only with SyncBatchNorm."},
    Explanation{
        errors::kFile,
        "The operating system could not open, read or write a file; the message has the file's name and the system's "
        "reason. Look at the name, the permissions and the free space. A relative name is taken from the working "
        "directory of the process, which may differ between workers."},
    Explanation{
        errors::kNoFiles,
        "No file has a name that matches the pattern. An empty dataset would go unnoticed until training ends at once, "
        "so this is an error. In a pattern, * stands for any characters but a slash, ? for one, [ab] for one of "
        "several."},
    Explanation{
        errors::kCompression,
        "The bytes of a compressed file do not form a ZLIB or GZIP stream: the wrong kind of compression was named, or "
        "the file is cut off or damaged. The message has the place among the compressed bytes. What comes after it "
        "cannot be read: make the file again or take a copy."},
    Explanation{
        errors::kRecord,
        "A record's checksum or length does not fit its bytes, or the file ends in the middle of a record. The file "
        "was damaged, cut off while it was written, or is of another format. The message has the record and the byte "
        "where it starts. The policy `skip` leaves damaged records out and counts them."},
    Explanation{
        errors::kExample,
        "The bytes of a record are not the wire format of tf.train.Example. The record may hold something else, or was "
        "cut. The message has the byte of the record where reading stopped making sense."},
    Explanation{
        errors::kFeature,
        "An Example is well formed but does not have what the feature description asks for: a feature without default "
        "is missing, has another type, or another number of values than its shape. The message names the feature, what "
        "was asked for and what the record has."},
    Explanation{
        errors::kNpy,
        "An npy file is damaged (its header is no strict description of an array, or the data is shorter or longer "
        "than the header says) or has elements that cannot be mapped: Python objects, text, dates, records, or "
        "big-endian numbers. Save the array anew as plain little-endian numbers."},
    Explanation{
        errors::kCsv,
        "A record of a CSV file has another number of fields than the first one, broken quotes, an empty field without "
        "a default, or a field that is no value of its column's type. The message has the line, the column and what "
        "stood there."},
    Explanation{
        errors::kPosition,
        "A place in a dataset is saved as positions and seeds, and restored by replaying the stages. That needs stages "
        "that give the same elements again: not a parallel map without order, and not a generator unless it is "
        "declared replayable. A saved place fits only the pipeline it was saved from; the message shows both. Behind a "
        "cache it also fits only what the cache held: a cache that was filled with other random numbers refuses it."},
    Explanation{
        errors::kCardinality,
        "assert_cardinality promised a number of elements, and the dataset had fewer or more. Correct the promise, or "
        "look for rows that were lost or counted twice."},
    Explanation{
        errors::kCacheFile,
        "A cache file was made by another pipeline, is damaged, or is being written by another iteration at this "
        "moment. Remove the file to make it anew; give every pipeline a file of its own."},
    Explanation{
        errors::kSharding,
        "Workers share a dataset by its files (each reads its own) or by its rows (each reads everything and keeps its "
        "part). By files needs a reader fed by file names: TFRecordDataset, TextLineDataset, or a flat_map or "
        "interleave whose function opens files. The message names the stage where the search ended. Choose another "
        "AutoShardPolicy in the dataset's options, or make each worker's pipeline with distribute_from_function."},
    Explanation{
        errors::kTooFewElements,
        "A dataset that is shared out by file or by a shard needs at least one file or element for every worker: one "
        "without would wait for ever for the others or end at once. All workers raise this before the first step. "
        "Switch sharding off, share out rows instead of files, or write the data as more files."},
    Explanation{
        errors::kNoMoreData,
        "A distributed iterator was asked for a step after its last one. A loop over the dataset ends by itself; "
        "get_next_as_optional returns nothing at the end; iterating the dataset again starts a new epoch."},
    Explanation{
        errors::kSignature,
        "`run` was given an element_spec as signature, and an argument does not fit it: another number of leaves, "
        "other keys, another element type, or another size in a dimension that the spec fixes. The message names the "
        "leaf. Take the spec from the dataset that the argument comes from, and leave open what may vary. Or a worker "
        "has run out of data while others have some, and what the empty batches of its replicas should look like is "
        "not known: say it with `spec` in the stage that makes the elements."},
    Explanation{
        errors::kInternal,
        "Lockstep found itself in a state that should be impossible: this is a bug in Lockstep, not in your program. "
        "Please report it with the message and, if you can, a small program that shows it."},
};

}  // namespace

std::string_view explain(int number) {
  const auto* found = std::ranges::find(kExplanations, number, &Explanation::number);
  return found == kExplanations.end() ? std::string_view() : found->text;
}

}  // namespace lockstep
