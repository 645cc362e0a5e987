#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <sstream>

#include "lockstep/base/logging.h"
#include "lockstep/data/element_bytes.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/own_tensor.h"
#include "lockstep/data/pipeline.h"

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

/// Passes that read from the cache return tensors outside any graph, and so does the one that fills it.
void leave_graph(Element& element) {
  for (Component& component : element.components)
    if (auto* tensor = std::get_if<at::Tensor>(&component); tensor != nullptr && tensor->requires_grad())
      *tensor = own_tensor(*tensor);
}

/// Determines the random choices below a cache, and so its contents: the job's seed, and the position in the pipeline
/// of the pass that came first. The epoch does not matter: it is 0.
struct Origin {
  std::uint64_t job_seed = 0;
  std::uint64_t path = 0;
  bool operator==(const Origin&) const = default;
};

/// The elements that a pass remembered. Immutable once complete.
struct Contents {
  std::vector<Element> elements;
  StagePtr rows;  ///< replaces `elements` if they fit into one batch, which can be gathered
};

/// Shared by all iterations of a cache: the origin that counts, and the contents.
class Memory final : public PassState {
 public:
  /// An empty path means in memory.
  explicit Memory(std::string file) : path(std::move(file)) {}

  const std::string path;

  std::string describe() const { return path.empty() ? "cache" : str("cache(", path, ")"); }

  /// Null until it is complete.
  std::shared_ptr<const Contents> contents() const {
    const std::lock_guard lock(mutex_);
    return contents_;
  }

  void save(Position& position) const override {
    const std::lock_guard lock(mutex_);
    const Origin origin = origin_.value_or(Origin{});
    position.push(origin_ ? 1 : 0);
    position.push(static_cast<std::int64_t>(origin.job_seed));
    position.push(static_cast<std::int64_t>(origin.path));
  }

  void restore(Position& position) override {
    const bool decided = position.pop() != 0;
    const auto job_seed = static_cast<std::uint64_t>(position.pop());
    const auto place = static_cast<std::uint64_t>(position.pop());
    if (decided) settle({job_seed, place}, false);
  }

  /// Whichever pass fills the cache, it holds what the first pass would have stored.
  IterationContext first_pass(const IterationContext& context) const override {
    const std::lock_guard lock(mutex_);
    IterationContext first = context;
    first.epoch = 0;
    if (origin_) {
      first.job_seed = origin_->job_seed;
      first.path = origin_->path;
    }
    return first;
  }

  /// Settles on `origin`. FailedPrecondition if a different one is already binding.
  void settle(const Origin& origin, bool while_under_way) {
    const std::lock_guard lock(mutex_);
    const bool may_change = !is_binding_ && (while_under_way || under_way_.expired());
    if (!origin_ || may_change) origin_ = origin;
    if (*origin_ == origin) {
      is_binding_ = true;
      return;
    }
    throw FailedPrecondition(errors::kPosition,
                             {.what = "the cache holds what another seed, or another place in a pipeline, gave",
                              .where = describe(),
                              .help = path.empty() ? "resume in a new dataset, before anything reads it"
                                                   : "remove the file to have it written again"});
  }

  /// For a pass that computes elements: joins the pass that is under way, or begins one.
  std::shared_ptr<const Origin> begin(const IterationContext& context) {
    const std::lock_guard lock(mutex_);
    if (!origin_) origin_ = Origin{context.job_seed, context.path};
    std::shared_ptr<const Origin> held = under_way_.lock();
    if (held && *held == *origin_) return held;
    held = std::make_shared<const Origin>(*origin_);
    under_way_ = held;
    return held;
  }

  /// After a complete pass; `contents` are dropped if there is a file.
  void complete(const Origin& origin, Contents&& contents) {
    const std::lock_guard lock(mutex_);
    if (contents_) return;
    if (path.empty()) contents_ = std::make_shared<const Contents>(std::move(contents));
    origin_ = origin;
    is_binding_ = true;
  }

  void warn_of_failure() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(warned_, true)) return;
    say_warning(
        str(describe(), ": an element failed, so this pass is not remembered; put ignore_errors before the cache"));
  }

 private:
  mutable std::mutex mutex_;
  /// Determined by the first pass that starts, not the first that completes: a pipeline may read the same cache at
  /// several places, and all of them see the same elements in every pass.
  std::optional<Origin> origin_;
  /// There are contents with this origin, or a loaded position requires it.
  bool is_binding_ = false;
  std::weak_ptr<const Origin> under_way_;  ///< held by passes that fill the cache
  std::shared_ptr<const Contents> contents_;
  bool warned_ = false;
};

/// The file: its origin (seed and position), the elements, and an end mark. A damaged element is one place that fails.
/// If the rest of the file cannot be found after it, all missing elements fail, or just one if their number is unknown.
class FromFileIterator final : public ElementIterator {
 public:
  FromFileIterator(const std::string& path, const std::string& pipeline, Cardinality size)
      : reader_(path), size_(size) {
    if (!reader_.next() || reader_.record() != kFileHeader + pipeline)
      throw FailedPrecondition(errors::kCacheFile, {.what = "the cache file was written by another pipeline",
                                                    .where = path,
                                                    .help = "remove the file to have it written again"});
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
        // A skipped element.
      }
    }
    return skipped;
  }

 private:
  /// Advances to the next element; false at the end. An exception takes up one place.
  bool advance() {
    if (ended_ || size_ == Cardinality(count_)) return false;
    ++count_;
    if (lost_) std::rethrow_exception(lost_);
    try {
      if (!reader_.next()) throw cut_off();
    } catch (const Error&) {
      if (!goes_on()) {
        lost_ = std::current_exception();
        ended_ = !size_.is_known();
      }
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

  DataLoss cut_off() const {
    return {errors::kCacheFile,
            {.what = "the cache file is cut off",
             .where = reader_.path(),
             .help = "remove the file to have it written again"}};
  }

  TFRecordReader reader_;
  Cardinality size_;
  Origin origin_;
  std::int64_t count_ = 0;  // places passed
  std::exception_ptr lost_;
  bool ended_ = false;
};

/// Passes elements on and remembers them in memory or in a file. Discards the result if destroyed before it is
/// complete.
class FillingIterator final : public ElementIterator {
 public:
  FillingIterator(std::shared_ptr<Memory> memory, const Stage& below, const IterationContext& context)
      : memory_(std::move(memory)),
        origin_(memory_->begin(context)),
        size_(below.cardinality_if(Reliability::Certain)),
        input_(below.iterate(memory_->first_pass(context))) {
    if (memory_->path.empty()) return;
    static std::atomic<int> number{0};
    temporary_ = str(memory_->path, ".", ::getpid(), ".", number.fetch_add(1), ".tmp");
    file_ = std::make_unique<TFRecordWriter>(temporary_);
    file_->write(kFileHeader + fingerprint(below));
    file_->write(str(origin_->job_seed, ' ', origin_->path));
  }
  ~FillingIterator() override { forget(); }

  bool next(Element& element) override {
    try {
      const bool more = input_->next(element);
      if (more) leave_graph(element);
      if (origin_) remember(element, more);
      return more;
    } catch (...) {
      if (origin_) memory_->warn_of_failure();
      forget();
      throw;
    }
  }

  // Skipped elements are computed all the same, for later passes.
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count && origin_) {
      if (ElementIterator::skip(1) == 0) return skipped;
      ++skipped;
    }
    return skipped + (skipped < count ? input_->skip(count - skipped) : 0);
  }

 private:
  void remember(const Element& element, bool more) {
    if (more) {
      if (file_)
        file_->write(to_bytes(element, "writing to a file"));
      else  // a copy that shares no memory: changes to an element must not reach the cache
        contents_.elements.push_back(own_copy(element));
      ++count_;
    }
    // A reader that knows the number of elements may never ask for the end.
    if (more && size_ != Cardinality(count_)) return;
    if (file_) {
      file_->write(kFileEnd);
      file_->close();
      file_ = nullptr;
      // Complete or absent: the name never refers to an incomplete file.
      std::filesystem::rename(temporary_, memory_->path);
    } else if (can_be_one_batch(contents_.elements)) {
      contents_.rows = make_slices(stack(std::exchange(contents_.elements, {}), "cache"));
    }
    memory_->complete(*origin_, std::move(contents_));
    forget();
  }

  void forget() {
    origin_ = nullptr;
    contents_ = {};
    if (std::exchange(file_, nullptr)) std::remove(temporary_.c_str());
  }

  std::shared_ptr<Memory> memory_;
  std::shared_ptr<const Origin> origin_;  // null once this pass will not be remembered, or already is
  Cardinality size_;
  IteratorPtr input_;
  std::string temporary_;
  std::unique_ptr<TFRecordWriter> file_;
  Contents contents_;
  std::int64_t count_ = 0;
};

IteratorPtr iterate_cache(const std::shared_ptr<Memory>& memory, const Stage& below, const IterationContext& context) {
  if (!memory->path.empty() && std::filesystem::exists(memory->path)) {
    auto reader = std::make_unique<FromFileIterator>(memory->path, fingerprint(below),
                                                     below.cardinality_if(Reliability::Certain));
    memory->settle(reader->filled_from(), true);  // another program may have written the file
    return reader;
  }
  if (const auto filled = memory->contents()) {
    if (!filled->rows) return iterate_elements({filled, &filled->elements});
    return filled->rows->iterate(context.unmeasured());
  }
  // Whichever pass fills the cache, it holds what the first pass would have stored: a resumed program must see the
  // same.
  return std::make_unique<FillingIterator>(memory, below, context);
}

StageDescription cache_in(const std::string& path) {
  const auto memory = std::make_shared<Memory>(path);
  const auto filled_rows = [memory] {
    const auto filled = memory->contents();
    return filled ? filled->rows : nullptr;
  };
  return {.kind = "cache",
          .text = memory->describe(),
          .identity = "cache",  // wherever it is kept
          .traits = {.source = StageTraits::Source::Inputs,
                     .elements = StageTraits::Elements::Same,
                     .cache = path.empty() ? StageTraits::Cache::Memory : StageTraits::Cache::File},
          .rows =
              [filled_rows](const Stage&) {
                const StagePtr rows = filled_rows();
                return rows ? rows->row_source() : nullptr;
              },
          .order =
              [filled_rows](const Stage&, const IterationContext& context) {
                const StagePtr rows = filled_rows();
                return rows ? rows->make_index_iterator(context) : nullptr;
              },
          .iterate = [memory](const Stage& below,
                              const IterationContext& context) { return iterate_cache(memory, below, context); },
          .pass_state = memory,
          .on_other_input =
              [path](const Stage&, int workers, int worker) {
                return cache_in(path.empty() || workers == 1 ? path : str(path, ".", worker, "-of-", workers));
              }};
}

}  // namespace

StagePtr make_cache(StagePtr input, std::string path) { return make_stage({std::move(input)}, cache_in(path)); }

}  // namespace lockstep::data
