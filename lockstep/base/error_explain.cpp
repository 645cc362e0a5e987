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
        "the deadline. The message names the missing replicas and the call in which the others waited. Usual causes: "
        "an endless loop or a blocking read in the replica function, a replica that returned early, or a step that is "
        "slower than the timeout allows. Check what the named replica was doing, and raise timeout_seconds if it was "
        "only slow."},
    Explanation{
        errors::kUnequalMeetings,
        "Every replica must make the same merge calls and collectives in the same order. Here one replica returned "
        "from its function while others still waited for it in a meeting. Usual causes: a call inside an `if` or a "
        "loop that depends on the replica's data, or an early return, such as one that skips an optimizer's minimize "
        "because the replica's batch is empty. Let all replicas take part. A replica with nothing to add contributes "
        "zeros, and the loss of zero rows is a valid loss."},
    Explanation{
        errors::kDifferentCollective,
        "Replicas met for different operations: the operation, the shape, the element type or the name differs "
        "between them. Nothing was computed. Usual causes: two calls in different order on different replicas, or "
        "tensors whose shape depends on the replica's data. The message shows what each replica passed."},
    Explanation{
        errors::kPeerLost,
        "A worker of the job ended without leaving, or sent no heartbeat for longer than allowed (3 s by default). All "
        "others stop with the same message, which names its host, its process and where it was last. Usual causes: it "
        "was killed (by the kernel, if memory ran out), its machine stopped or the network between them is cut. Look at "
        "the named worker's own log first. If two workers \"cannot reach each other\", both run and reach the chief: look at "
        "the network between their two hosts."},
    Explanation{
        errors::kPeerMissing,
        "A job starts when all workers of the cluster are there. Some did not come in time. The message names them and "
        "reports the result of connecting to them: refused (nothing runs there yet), no answer (host down, or a firewall), or "
        "a name that is not known. Start the missing workers, or correct their addresses."},
    Explanation{
        errors::kPortInUse,
        "Every worker takes the address of its entry in the cluster, so that a mix-up is noticed. The port is taken by "
        "another process, which the message names where it can, or the address belongs to another host. End that process, "
        "choose another port, or correct the task index."},
    Explanation{
        errors::kTaskTaken,
        "Two processes have the same task type and index, so one of them is one too many and another index is probably "
        "missing. The message names the process that holds it and for how long. Give every process its own index."},
    Explanation{
        errors::kDifferentClusters,
        "All workers must describe the cluster in the same way: the same entries in the same order. The message shows the "
        "lines that differ and on which workers. Copy one description to all workers; only the task differs."},
    Explanation{
        errors::kDifferentPrograms,
        "Workers compute the same bits only if they run the same program: the same version, seed and threads per replica, "
        "the same model and the same optimizer. The message shows what differs and on which workers."},
    Explanation{
        errors::kCollectiveMismatch,
        "Every worker must make the same collectives in the same order. Workers announce to each other what they are about to "
        "do before any data is used, and here they differ: in the operation, the reduction, the element type, the "
        "shape or the name. No data was used; the job cannot continue. Usual causes: a collective inside an `if` that "
        "depends on the worker, two calls in another order, or a model that differs between workers. The message shows "
        "what each worker called; the log of collectives shows what came before."},
    Explanation{
        errors::kJobKey,
        "Workers on several hosts show each other that they know the job key, 32 secret bytes. It is missing, cannot be "
        "read, or differs between workers. `lockstep run` makes one for you; else set LOCKSTEP_JOB_KEY_FILE to a file of "
        "mode 0600 with the same content on all hosts. With TLS it can also be a certificate that is missing, expired, signed by "
        "another authority than the other workers' or made for another host."},
    Explanation{
        errors::kStranger,
        "Something other than a worker of this job sent bytes to one of its ports: a scanner, another program, or another "
        "version of Lockstep. It was dropped and the job was not disturbed."},
    Explanation{
        errors::kPeerFailed,
        "The program of another worker ended with an exception. All workers stop with its message, since they cannot continue "
        "without it. The cause is on the named worker."},
    Explanation{
        errors::kEngineLoad,
        "Gloo's ring, which moves tensors between workers if CommunicationOptions ask for it, is a shared library of its "
        "own. It was not found, could not be loaded or belongs to another version. "
        "Build and install Lockstep with LOCKSTEP_CLUSTER=ON. The library is searched next to the program, in ../lib seen "
        "from there, and in the lib folder of the Lockstep that the program was linked with; the environment variable "
        "LOCKSTEP_ENGINE names its file if it is elsewhere."},
    Explanation{
        errors::kClusterDescription,
        "Every worker reads the description of the whole cluster and which task it is itself, usually from TF_CONFIG: "
        "{\"cluster\": {\"worker\": [\"host0:2222\", \"host1:2222\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}. The "
        "cluster is the same on all workers, the index is different on each. Jobs are chief (at most one task), worker "
        "and evaluator (at most one task). The message names the wrong part. Without TF_CONFIG a program trains on "
        "this machine."},
    Explanation{
        errors::kSlurm,
        "The Slurm resolver makes the cluster from the variables that srun sets for every task of a step: SLURM_PROCID, "
        "SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE. One of them is missing or makes no "
        "sense, or it contradicts the options. Start the program with srun, with as many tasks as the jobs need and "
        "with block distribution of tasks."},
    Explanation{
        errors::kChiefGone,
        "The first worker (the chief) coordinates the job. It died, left before the others, or does not answer. Look at the "
        "chief's log first. If it still runs, the network between it and this worker is cut. A chief that loses the workers of "
        "all other hosts at once reports that it is cut off itself."},
    Explanation{
        errors::kOldIncarnation,
        "A worker that belongs to an earlier run of the job, or that the job has already given up, came back. It was refused, "
        "because its weights differ from the others'. Restart the whole job."},
    Explanation{
        errors::kWrongContext,
        "Some calls belong inside the function given to `run` (replica context: all_reduce, merge_call, the replica's "
        "id), others outside of it (cross-replica context: run, reduce, gather, update). This call was made in the "
        "wrong context. Inside `run`, call `merge_call` to run code in the cross-replica context."},
    Explanation{
        errors::kMixedStrategies,
        "A value, variable or scope of one strategy was used with another strategy. A strategy can act only on what "
        "was made under it. Use one strategy object for a model, its optimizer and its data, and leave the scope of "
        "one strategy before you enter another's."},
    Explanation{
        errors::kConcurrentRun,
        "A strategy has one set of replica threads and runs one function at a time. A second thread called `run` while "
        "a first was still inside. Call `run` from one thread, guard it with a mutex, or make one strategy per thread."},
    Explanation{
        errors::kBadOption,
        "An option has an impossible value, such as a negative size or a timeout that is not a number. The message "
        "names the option and the values it accepts."},
    Explanation{
        errors::kNotAvailable,
        "This part of Lockstep is missing in this build or on this machine: an engine that was not compiled in, or a "
        "device that the linked LibTorch does not support. The message names the build option or the device."},
    Explanation{
        errors::kSeedInsideRun,
        "torch::manual_seed was called inside a replica function, with several replicas. All threads of LibTorch share "
        "that generator, so the result would depend on timing. Each of several replicas has its own stream, derived from "
        "the job's seed. Set the seed once, before you make the strategy, or in the strategy's options; strategy.set_seed "
        "restarts the streams."},
    Explanation{
        errors::kNoThreads,
        "The system refused to start a thread that Lockstep needs: one for a replica, or one that reads a dataset "
        "ahead. A limit on processes (ulimit -u), on memory (ulimit -v) or of a container was reached. Use fewer "
        "replicas or parallel calls, or raise the limit. It is safe to try again later: nothing was read or computed."},
    Explanation{
        errors::kStructure,
        "Values that belong together have different structures: a different number of elements in a tuple or list, "
        "different keys in a map, or a tensor on one side and a container on the other. Replicas must return the same "
        "structure. The message names the place where they differ."},
    Explanation{
        errors::kShape,
        "Shapes, ranks or axes do not fit together: components of different shape in a reduction, an axis that a "
        "tensor does not have, or a scalar where rows are needed. The message shows the shapes."},
    Explanation{
        errors::kDtype,
        "The element type does not fit the operation, or differs between replicas. Integers and floating-point types "
        "have sums; bool has none. Convert before the call, for example bool to int64 to count."},
    Explanation{
        errors::kDevice,
        "A device name could not be parsed, occurs twice, or names a device that is not in this process. Names look "
        "like \"cpu:0\", \"gpu:1\" or \"/job:worker/task:0/device:GPU:0\". Each replica needs its own name; \"cpu:0\" "
        "and \"cpu:1\" are logical devices that share the machine's cores. A strategy over several machines is "
        "MultiWorkerMirroredStrategy."},
    Explanation{
        errors::kDestination,
        "The destinations of a reduction determine where its result goes: a device name, a list of them, a variable or a "
        "distributed value. The given destinations are empty, unknown, or differ between the values of one batch."},
    Explanation{
        errors::kNotReducible,
        "The value cannot be reduced. You can reduce tensors, sparse rows and numbers, but not a plain value that "
        "differs between replicas, a string or an unknown type. Return what you want to reduce from the replica "
        "function, so that it has one component per replica."},
    Explanation{
        errors::kComponent,
        "A distributed value has one component per replica. It was used where a single value is needed and it is not "
        "clear which component is meant, or the requested component does not exist. Inside `run` a replica gets its "
        "own component; outside, use reduce, gather, local_results or an index."},
    Explanation{
        errors::kVariableMode,
        "A variable's synchronization (when copies are made equal) and aggregation (how) must fit together. A "
        "variable that is synchronized on read must not be trainable, and one without synchronization cannot live on "
        "several replicas. The message names the combination and the ones that work."},
    Explanation{
        errors::kVariableAssign,
        "This assignment would leave the copies of a variable different, or its result is not defined. Inside a "
        "replica a mirrored variable needs an aggregation (sum, mean, only the first replica), which turns the "
        "replicas' values into one. Outside, assign one value to all."},
    Explanation{
        errors::kVariableName,
        "Replicas created different variables, or the same ones in a different order. Variables made inside `run` "
        "must be the same on every replica. Make them before `run`, or do not let their creation depend on the "
        "replica."},
    Explanation{
        errors::kWrongModule,
        "Every replica has its own module, and `model->` inside `run` is the calling replica's. Here a module was "
        "used in a way that replicas cannot share: taken outside of `run` and used inside, used by another replica's "
        "thread, or built differently on different replicas. Call `model->` inside `run`, and let the same arguments "
        "build the same parameters."},
    Explanation{
        errors::kOptimizer,
        "The optimizer cannot do this, or cannot do it now: options differ between replicas, a step comes in the "
        "middle of an accumulation, or a parameter is unknown. The message names the broken rule. Change options "
        "through the mirrored optimizer, which passes them on to every replica."},
    Explanation{
        errors::kTornWeights,
        "An update failed half-way, so some weights belong to the new step and some to the old one. To continue would "
        "hide this. Restore the last checkpoint, or make the model and its optimizer again. The first error explains why "
        "the update failed."},
    Explanation{
        errors::kNotFinite,
        "A gradient or a loss is NaN or infinite. The weights were not touched. Usual causes: a learning rate that is "
        "too high, a division by zero or a logarithm of zero in the loss, overflow in 16-bit types without loss "
        "scaling, or bad values in the data. The message names the first parameter concerned."},
    Explanation{
        errors::kDrift,
        "Replicas compared digests of what should be equal on all of them, and one replica differs. Either code wrote "
        "to the module of one replica only, or memory is faulty. Do not trust what was trained since the last "
        "comparison without a difference. Buffers of ordinary batch-norm layers differ between replicas: compare them "
        "only with SyncBatchNorm."},
    Explanation{
        errors::kSavedState,
        "A file that is being loaded lacks tensors of the model, has others, or has them in another shape or type; or it "
        "has no state for the optimizer, or the state of another class. The message lists all differences, and nothing was "
        "changed. Build the model and the optimizer as they were when the file was saved, or pass {.strict = false} to "
        "load what fits."},
    Explanation{
        521,  // errors::kCheckpoint in train/checkpoint/errors.h
        "A checkpoint is missing, damaged, of a newer version of Lockstep, or its folder belongs to another training. The "
        "message names the file. `lockstep verify FOLDER` checks all checkpoints of a folder; a training that is resumed "
        "takes the newest valid one by itself. Give each training a folder of its own."},
    Explanation{
        errors::kFile,
        "The operating system could not open, read or write a file. The message has the file's name and the system's "
        "reason. Check the name, the permissions and the free space. A relative name starts at the working directory "
        "of the process, which may differ between workers."},
    Explanation{
        errors::kNoFiles,
        "No file name matches the pattern. This is an error because an empty dataset would only show when training "
        "ends at once. In a pattern, * matches any characters except a slash, ? matches one, [ab] one of several."},
    Explanation{
        errors::kCompression,
        "The bytes of a compressed file are not a ZLIB or GZIP stream: the wrong compression was given, or the file "
        "is truncated or damaged. The message has the position among the compressed bytes. Nothing after it can be "
        "read: write the file again or use a copy."},
    Explanation{
        errors::kRecord,
        "A record's checksum or length does not match its bytes, or the file ends in the middle of a record. The file "
        "was damaged, truncated while it was written, or has a different format. The message has the record and the "
        "byte where it starts. OnDamage::Skip skips damaged records and counts them."},
    Explanation{
        errors::kExample,
        "The bytes of a record are not the wire format of tf.train.Example. The record may hold something else, or "
        "was truncated. The message has the byte of the record where parsing failed."},
    Explanation{
        errors::kFeature,
        "An Example is well formed but does not have what the feature description asks for: a feature without a "
        "default is missing, has a different type, or has a number of values that does not match its shape. The "
        "message names the feature, what was expected and what the record has."},
    Explanation{
        errors::kNpy,
        "An npy file is damaged (its header does not strictly describe an array, or the data is shorter or longer "
        "than the header states), or has elements that cannot be mapped: Python objects, text, dates, records, or "
        "big-endian numbers. Save the array again as plain little-endian numbers."},
    Explanation{
        errors::kCsv,
        "A record of a CSV file has a different number of fields than the first one, malformed quotes, an empty field "
        "without a default, or a field that is not a value of its column's type. The message has the line, the column "
        "and the text found there."},
    Explanation{
        errors::kSafetensors,
        "A safetensors file is damaged (it is cut off, its header does not describe exactly the bytes that follow, or a "
        "checksum does not fit), or tensors cannot be written as one: their element type, layout or names are not those "
        "of the format. Use another copy of the file, or convert the tensors that the message names."},
    Explanation{
        errors::kPosition,
        "A position in a dataset is saved as counts and seeds, and restored by replaying the stages. This needs "
        "stages that can repeat their elements: not a parallel map without order, and not a generator unless it is "
        "declared replayable. A saved position fits only the pipeline that it was saved from; the message shows both. "
        "After a cache it also fits only what the cache held: a cache that was filled with different random numbers "
        "refuses it."},
    Explanation{
        errors::kCardinality,
        "assert_cardinality promised a number of elements, and the dataset had fewer or more. Correct the promise, or "
        "look for rows that were lost or counted twice."},
    Explanation{
        errors::kCacheFile,
        "A cache file was made by another pipeline, is damaged, or is being written by another iteration right now. "
        "Remove the file to write it again, and give every pipeline its own file."},
    Explanation{
        errors::kSharding,
        "Workers share a dataset by its files (each reads its own) or by its rows (each reads everything and keeps its "
        "part). By files needs a reader fed by file names: tfrecord_dataset, text_line_dataset, or a flat_map or "
        "interleave whose function opens files. The message names the stage where the search ended. Choose another "
        "AutoShardPolicy in the dataset's options, or make each worker's pipeline with distribute_from_function."},
    Explanation{
        errors::kTooFewElements,
        "A dataset that is divided by file or by a shard needs at least one file or element for every worker. A "
        "worker without one would wait forever for the others or end at once. All workers raise this before the first "
        "step. Switch sharding off, divide rows instead of files, or write the data to more files."},
    Explanation{
        errors::kNoMoreData,
        "A distributed iterator was asked for a step after its last one. A loop over the dataset ends by itself, "
        "get_next_as_optional returns an empty optional at the end, and iterating the dataset again starts a new "
        "epoch."},
    Explanation{
        errors::kSignature,
        "`run` was given an element_spec as its signature, and an argument does not fit it: the number of leaves, the "
        "keys, an element type, or a size in a dimension that the spec fixes is different. The message names the "
        "leaf. Take the spec from the dataset that the argument comes from, and leave open what may vary. Or a worker "
        "has run out of data while others have some, and the shape of its replicas' empty batches is unknown: set "
        "`spec` in the stage that makes the elements."},
    Explanation{
        errors::kInternal,
        "Lockstep is in a state that should be impossible. This is a bug in Lockstep, not in your program. Please "
        "report it with the message and, if you can, a small program that shows it."},
};

}  // namespace

std::string_view explain(int number) {
  const auto* found = std::ranges::find(kExplanations, number, &Explanation::number);
  return found == kExplanations.end() ? std::string_view() : found->text;
}

}  // namespace lockstep
