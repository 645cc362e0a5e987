#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <mutex>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/data/element_bytes.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/own_tensor.h"
#include "lockstep/data/pipeline.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {
namespace {

constexpr const char* kFileHeader = "lockstep-cache 3\n";
constexpr std::string_view kFileEnd = "lockstep-cache end\n";

bool can_be_one_batch(const std::vector<Element>& elements) {
  if (elements.empty()) return false;
  const ElementSpec first = ElementSpec::of(elements.front());
  for (const ComponentSpec& component : *first.components)
    if (component.kind != ComponentSpec::Kind::Tensor) return false;
  for (const Element& element : elements) {
    if (!(ElementSpec::of(element) == first)) return false;
    for (const Component& component : element.components) {
      const at::Tensor& tensor = std::get<at::Tensor>(component);
      if (!tensor.is_cpu() || tensor.layout() != at::kStrided) return false;
    }
  }
  return !first.components->empty();
}

/// Passes that read from the cache give tensors outside of any graph, and so does the one that fills it.
void leave_graph(Element& element) {
  for (Component& component : element.components)
    if (auto* tensor = std::get_if<at::Tensor>(&component); tensor != nullptr && tensor->requires_grad())
      *tensor = own_tensor(*tensor);
}

/// What decides the random choices below a cache, and so its contents: the job's seed, and the place in the pipeline
/// of the pass that came first. The epoch does not: it is 0.
struct Origin {
  std::uint64_t job_seed = 0;
  std::uint64_t path = 0;
  bool operator==(const Origin&) const = default;
};

/// What a pass has remembered. Does not change any more once it is there.
struct Contents {
  std::vector<Element> elements;
  StagePtr rows;  ///< in place of `elements` where they fit into one batch: then they can be gathered
};

/// Shared by all iterations of a cache.
struct Memory {
  std::mutex mutex;
  /// Decided by the first pass that starts and not by the one that is complete first: a pipeline may read the same
  /// cache at several places, and all of them see the same elements in every pass.
  std::optional<Origin> origin;
  /// There are contents of this origin, or a position was loaded that needs it.
  bool is_binding = false;
  std::weak_ptr<const Origin> under_way;     ///< held by passes that fill the cache
  std::shared_ptr<const Contents> contents;  ///< null until it is complete
  bool warned = false;
};

/// The file: what made it, the seed and place, the elements, and a mark that it is complete. A damaged element is one
/// place that fails. If the rest of the file cannot be found behind it all that are missing fail, or one where
/// it is not known how many there should be.
class FromFileIterator final : public ElementIterator {
 public:
  FromFileIterator(const std::string& path, const std::string& pipeline, Cardinality size)
      : reader_(path), size_(size) {
    if (!reader_.next() || reader_.record() != kFileHeader + pipeline)
      throw FailedPrecondition(errors::kCacheFile, {.what = "the cache file was written by another pipeline",
                                                    .where = path,
                                                    .help = "remove the file to make it anew"});
    if (!reader_.next()) throw cut_off();
    std::istringstream numbers{std::string(reader_.record())};
    numbers >> origin_.job_seed >> origin_.path;
  }

  const Origin& filled_from() const { return origin_; }

  bool next(Element& element) override {
    if (!advance()) return false;
    element = element_from_bytes(reader_.record(), reader_.path());
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    for (; skipped < count; ++skipped) {
      try {
        if (!advance()) break;
      } catch (const Error&) {
        // An element that is left out.
      }
    }
    return skipped;
  }

 private:
  /// Goes to the next element; false at the end. What it throws takes the place of one.
  bool advance() {
    if (ended_ || size_ == Cardinality(count_)) return false;
    ++count_;
    if (lost_) std::rethrow_exception(lost_);
    try {
      if (!reader_.next()) throw cut_off();
    } catch (const Error&) {
      if (!goes_on()) lose_rest();
      throw;
    }
    ended_ = reader_.record() == kFileEnd;
    if (ended_) --count_;
    return !ended_;
  }

  bool goes_on() {
    try {
      return reader_.skip(1) == 1;  // if only the element's bytes are damaged
    } catch (const Error&) {
      return false;
    }
  }

  void lose_rest() {
    lost_ = std::current_exception();
    ended_ = !size_.is_known();
  }

  DataLoss cut_off() const {
    return {errors::kCacheFile,
            {.what = "the cache file is cut off", .where = reader_.path(), .help = "remove the file to make it anew"}};
  }

  TFRecordReader reader_;
  Cardinality size_;
  Origin origin_;
  std::int64_t count_ = 0;  // places passed
  std::exception_ptr lost_;
  bool ended_ = false;
};

/// Where a pass puts what it reads: into memory, or into the file of a path. Destroyed before `finish`, it forgets
/// everything.
class CacheWriter {
 public:
  CacheWriter(std::shared_ptr<Memory> memory, std::shared_ptr<const Origin> origin, std::string path,
              const std::string& pipeline)
      : memory_(std::move(memory)), origin_(std::move(origin)), path_(std::move(path)) {
    if (path_.empty()) return;
    static std::atomic<int> number{0};
    temporary_ = str(path_, ".", ::getpid(), ".", number.fetch_add(1), ".tmp");
    file_ = std::make_unique<TFRecordWriter>(temporary_);
    file_->write(kFileHeader + pipeline);
    file_->write(str(origin_->job_seed, ' ', origin_->path));
  }
  CacheWriter(const CacheWriter&) = delete;
  CacheWriter& operator=(const CacheWriter&) = delete;
  ~CacheWriter() {
    if (std::exchange(file_, nullptr)) std::remove(temporary_.c_str());
  }

  void add(const Element& element) {
    if (file_)
      file_->write(to_bytes(element, "writing to a file"));
    else  // a copy that shares no memory: what is done to an element must not change the cache
      contents_.elements.push_back(own_copy(element));
  }

  void finish() {
    if (file_) {
      file_->write(kFileEnd);
      file_->close();
      file_ = nullptr;
      // Complete or not there at all: under its name there is never half of it.
      std::filesystem::rename(temporary_, path_);
    } else if (can_be_one_batch(contents_.elements)) {
      contents_.rows = make_slices(stack(std::exchange(contents_.elements, {}), "cache"));
    }
    const std::lock_guard lock(memory_->mutex);
    if (memory_->contents) return;
    if (path_.empty()) memory_->contents = std::make_shared<const Contents>(std::move(contents_));
    memory_->origin = *origin_;
    memory_->is_binding = true;
  }

 private:
  std::shared_ptr<Memory> memory_;
  std::shared_ptr<const Origin> origin_;
  std::string path_;
  Contents contents_;
  std::string temporary_;
  std::unique_ptr<TFRecordWriter> file_;
};

/// Hands elements on and remembers them.
class FillingIterator final : public ElementIterator {
 public:
  FillingIterator(IteratorPtr input, Cardinality size, std::unique_ptr<CacheWriter> writer, std::function<void()> warn)
      : input_(std::move(input)), size_(size), writer_(std::move(writer)), warn_(std::move(warn)) {}

  bool next(Element& element) override {
    try {
      const bool more = input_->next(element);
      if (more) leave_graph(element);
      if (writer_) remember(element, more);
      return more;
    } catch (...) {
      if (writer_) warn_();
      writer_ = nullptr;
      throw;
    }
  }

  // Elements that are left out now are computed all the same, for the passes to come.
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count && writer_) {
      if (ElementIterator::skip(1) == 0) return skipped;
      ++skipped;
    }
    return skipped + (skipped < count ? input_->skip(count - skipped) : 0);
  }

 private:
  void remember(const Element& element, bool more) {
    if (more) {
      writer_->add(element);
      ++count_;
    }
    // Whoever knows how many elements there are may not ask for the end.
    if (more && size_ != Cardinality(count_)) return;
    writer_->finish();
    writer_ = nullptr;
  }

  IteratorPtr input_;
  Cardinality size_;
  std::unique_ptr<CacheWriter> writer_;  // null once it is clear that this pass is not remembered, or is already
  std::function<void()> warn_;
  std::int64_t count_ = 0;
};

class CacheStage final : public StageOf<CacheStage> {
 public:
  /// An empty path: in memory.
  CacheStage(StagePtr input, std::string path)
      : StageOf({std::move(input)}), path_(std::move(path)), memory_(std::make_shared<Memory>()) {}
  CacheStage(const CacheStage& other) : StageOf(other), path_(other.path_), memory_(std::make_shared<Memory>()) {}

  std::string_view kind() const override { return "cache"; }
  std::string describe() const override { return path_.empty() ? "cache" : str("cache(", path_, ")"); }
  std::string identity() const override { return "cache"; }  // wherever it is kept
  StageTraits traits() const override {
    return {.source = StageTraits::Source::Inputs,
            .elements = StageTraits::Elements::Same,
            .cache = path_.empty() ? StageTraits::Cache::Memory : StageTraits::Cache::File};
  }
  Cardinality cardinality() const override { return input()->cardinality(); }
  ElementSpec element_spec() const override { return input()->element_spec(); }
  StagePtr for_worker(std::vector<StagePtr> inputs, int workers, int worker) const override {
    return make_cache(std::move(inputs.at(0)), path_.empty() ? "" : str(path_, ".", worker, "-of-", workers));
  }
  RowSourcePtr row_source() const override {
    const auto filled = contents();
    return filled && filled->rows ? filled->rows->row_source() : nullptr;
  }
  IndexIteratorPtr make_index_iterator(const IterationContext& context) const override {
    const auto filled = contents();
    return filled && filled->rows ? filled->rows->make_index_iterator(context) : nullptr;
  }

  void save_lasting(Position& position) const override {
    const std::lock_guard lock(memory_->mutex);
    const Origin origin = memory_->origin.value_or(Origin{});
    position.push(memory_->origin ? 1 : 0);
    position.push(static_cast<std::int64_t>(origin.job_seed));
    position.push(static_cast<std::int64_t>(origin.path));
  }

  void restore_lasting(Position& position) const override {
    const bool decided = position.pop() != 0;
    const auto job_seed = static_cast<std::uint64_t>(position.pop());
    const auto path = static_cast<std::uint64_t>(position.pop());
    if (decided) settle({job_seed, path}, false);
  }

  /// Whichever pass fills the cache, it holds what the first one would have.
  IterationContext first_pass(const IterationContext& context) const override {
    const std::lock_guard lock(memory_->mutex);
    IterationContext first = context;
    first.epoch = 0;
    if (memory_->origin) {
      first.job_seed = memory_->origin->job_seed;
      first.path = memory_->origin->path;
    }
    return first;
  }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    if (!path_.empty() && std::filesystem::exists(path_)) {
      auto reader =
          std::make_unique<FromFileIterator>(path_, fingerprint(*input()), input()->cardinality_if(Trust::Certain));
      settle(reader->filled_from(), true);  // a file may be another program's
      return reader;
    }
    if (const auto filled = contents()) {
      if (!filled->rows) return iterate_elements({filled, &filled->elements});
      return make_row_iterator(filled->rows->row_source(), filled->rows->make_index_iterator(context));
    }
    // Whichever pass fills the cache, it holds what the first one would have: a resumed program must see the same.
    auto writer =
        std::make_unique<CacheWriter>(memory_, begin(context), path_, path_.empty() ? "" : fingerprint(*input()));
    const auto warn = [memory = memory_, where = describe()] {
      const std::lock_guard lock(memory->mutex);
      if (!std::exchange(memory->warned, true))
        log_warning(
            str(where, ": an element failed, so this pass is not remembered; put ignore_errors before the cache"));
    };
    return std::make_unique<FillingIterator>(input()->iterate(first_pass(context)),
                                             input()->cardinality_if(Trust::Certain), std::move(writer), warn);
  }

 private:
  std::shared_ptr<const Contents> contents() const {
    const std::lock_guard lock(memory_->mutex);
    return memory_->contents;
  }

  /// Makes `origin` the one that counts. FailedPrecondition if there is another one already that must not change.
  void settle(const Origin& origin, bool while_under_way) const {
    const std::lock_guard lock(memory_->mutex);
    const bool may_change = !memory_->is_binding && (while_under_way || memory_->under_way.expired());
    if (!memory_->origin || may_change) memory_->origin = origin;
    if (*memory_->origin == origin) {
      memory_->is_binding = true;
      return;
    }
    throw FailedPrecondition(errors::kPosition,
                             {.what = "the cache holds what another seed, or another place in a pipeline, gave",
                              .where = describe(),
                              .help = path_.empty() ? "resume in a new dataset, before anything reads it"
                                                    : "remove the file to make it anew"});
  }

  /// For a pass that computes elements: takes part in what is under way, or begins it.
  std::shared_ptr<const Origin> begin(const IterationContext& context) const {
    const std::lock_guard lock(memory_->mutex);
    if (!memory_->origin) memory_->origin = Origin{context.job_seed, context.path};
    std::shared_ptr<const Origin> held = memory_->under_way.lock();
    if (held && *held == *memory_->origin) return held;
    held = std::make_shared<const Origin>(*memory_->origin);
    memory_->under_way = held;
    return held;
  }

  std::string path_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace

StagePtr make_cache(StagePtr input, std::string path) {
  return std::make_shared<CacheStage>(std::move(input), std::move(path));
}

}  // namespace lockstep::data
