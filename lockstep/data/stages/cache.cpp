#include "lockstep/data/stages/cache.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/data/element_bytes.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/data/stages/sources.h"

namespace lockstep::data {
namespace {

constexpr const char* kFileHeader = "lockstep-cache 2\n";
constexpr std::string_view kFileEnd = "lockstep-cache end\n";

bool can_be_one_batch(const std::vector<Element>& elements) {
  if (elements.empty()) return false;
  const ElementSpec first = ElementSpec::of(elements.front());
  for (const ComponentSpec& component : *first.components)
    if (component.kind != ComponentSpec::Kind::Tensor) return false;
  for (const Element& element : elements) {
    if (!(ElementSpec::of(element) == first)) return false;
    for (const Component& component : element.components)
      if (!std::get<at::Tensor>(component).is_cpu()) return false;
  }
  return !first.components->empty();
}

class FromMemoryIterator final : public ElementIterator {
 public:
  explicit FromMemoryIterator(std::shared_ptr<const CacheStage::Contents> contents) : contents_(std::move(contents)) {}

  bool next(Element& element) override {
    if (at_ == contents_->elements.size()) return false;
    element = own_copy(contents_->elements[at_++]);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    const std::int64_t skipped = std::min(count, static_cast<std::int64_t>(contents_->elements.size() - at_));
    at_ += static_cast<std::size_t>(skipped);
    return skipped;
  }

 private:
  std::shared_ptr<const CacheStage::Contents> contents_;
  std::size_t at_ = 0;
};

/// The file: what made it, the seed and place, the elements, and a mark that it is complete.
class FromFileIterator final : public ElementIterator {
 public:
  FromFileIterator(const std::string& path, const std::string& pipeline) : reader_(path) {
    if (!reader_.next() || reader_.record() != kFileHeader + pipeline)
      throw FailedPrecondition(errors::kCacheFile, {.what = "the cache file was written by another pipeline",
                                                    .where = path,
                                                    .help = "remove the file to make it anew"});
    if (!advance()) return;
    std::istringstream numbers{std::string(reader_.record())};
    numbers >> origin_.job_seed >> origin_.path;
  }

  const CacheStage::Origin& origin() const { return origin_; }

  bool next(Element& element) override {
    if (!advance()) return false;
    element = element_from_bytes(reader_.record(), reader_.path());
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count && advance()) ++skipped;
    return skipped;
  }

 private:
  bool advance() {
    if (ended_) return false;
    if (!reader_.next()) {
      ended_ = true;
      throw DataLoss(errors::kCacheFile, {.what = "the cache file is cut off", .where = reader_.path()});
    }
    ended_ = reader_.record() == kFileEnd;
    return !ended_;
  }

  TFRecordReader reader_;
  CacheStage::Origin origin_;
  bool ended_ = false;
};

/// Where a pass puts what it reads. Destroyed before `finish`, it forgets everything.
class CacheWriter {
 public:
  CacheWriter(std::shared_ptr<CacheStage::Memory> memory, const CacheStage::Origin& origin)
      : memory_(std::move(memory)), origin_(origin) {}
  virtual ~CacheWriter() = default;
  virtual void add(const Element& element) = 0;
  virtual void finish() = 0;

 protected:
  std::shared_ptr<CacheStage::Memory> memory_;
  CacheStage::Origin origin_;
};

class MemoryWriter final : public CacheWriter {
 public:
  MemoryWriter(std::shared_ptr<CacheStage::Memory> memory, const CacheStage::Origin& origin)
      : CacheWriter(std::move(memory), origin), contents_(std::make_shared<CacheStage::Contents>()) {}

  /// A copy that shares no memory: what is done to an element must not change the cache.
  void add(const Element& element) override { contents_->elements.push_back(own_copy(element)); }

  void finish() override {
    if (can_be_one_batch(contents_->elements))
      contents_->rows = make_slices(stack(std::exchange(contents_->elements, {}), "cache"));
    const std::lock_guard lock(memory_->mutex);
    if (memory_->contents) return;
    memory_->contents = std::move(contents_);
    memory_->origin = origin_;
  }

 private:
  std::shared_ptr<CacheStage::Contents> contents_;
};

class FileWriter final : public CacheWriter {
 public:
  FileWriter(std::shared_ptr<CacheStage::Memory> memory, const CacheStage::Origin& origin, std::string path,
             const std::string& pipeline)
      : CacheWriter(std::move(memory), origin),
        path_(std::move(path)),
        temporary_(temporary_name(path_)),
        writer_(std::make_unique<TFRecordWriter>(temporary_)) {
    writer_->write(kFileHeader + pipeline);
    writer_->write(str(origin.job_seed, ' ', origin.path));
  }
  ~FileWriter() override {
    if (!writer_) return;
    writer_ = nullptr;
    std::remove(temporary_.c_str());
  }

  void add(const Element& element) override { writer_->write(to_bytes(element)); }

  void finish() override {
    writer_->write(kFileEnd);
    writer_->close();
    writer_ = nullptr;
    // Complete or not there at all: nobody ever sees half of it under its name.
    std::filesystem::rename(temporary_, path_);
    const std::lock_guard lock(memory_->mutex);
    memory_->origin = origin_;
  }

 private:
  static std::string temporary_name(const std::string& path) {
    static std::atomic<int> number{0};
    return str(path, ".", ::getpid(), ".", number.fetch_add(1), ".tmp");
  }

  std::string path_;
  std::string temporary_;
  std::unique_ptr<TFRecordWriter> writer_;
};

/// Hands elements on and remembers them.
class FillingIterator final : public ElementIterator {
 public:
  FillingIterator(IteratorPtr input, Cardinality size, std::unique_ptr<CacheWriter> writer, std::function<void()> warn)
      : input_(std::move(input)), size_(size), writer_(std::move(writer)), warn_(std::move(warn)) {}

  bool next(Element& element) override {
    try {
      const bool more = input_->next(element);
      if (writer_) remember(element, more);
      return more;
    } catch (...) {
      if (writer_) warn_();
      writer_ = nullptr;
      throw;
    }
  }

  // Elements that nobody wants now are computed all the same, for the passes to come.
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

}  // namespace

CacheStage::CacheStage(StagePtr input, std::string path)
    : PassThroughStage({std::move(input)}), path_(std::move(path)), memory_(std::make_shared<Memory>()) {}

std::string CacheStage::describe() const { return path_.empty() ? "cache" : str("cache(", path_, ")"); }

StagePtr CacheStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<CacheStage>(std::move(inputs.front()), path_);
}

std::shared_ptr<const CacheStage::Contents> CacheStage::contents() const {
  const std::lock_guard lock(memory_->mutex);
  return memory_->contents;
}

RowSourcePtr CacheStage::row_source() const {
  const auto filled = contents();
  return filled && filled->rows ? filled->rows->row_source() : nullptr;
}

std::unique_ptr<IndexIterator> CacheStage::make_index_iterator(const IterationContext& context) const {
  const auto filled = contents();
  return filled && filled->rows ? filled->rows->make_index_iterator(context) : nullptr;
}

void CacheStage::save_lasting(Position& position) const {
  const std::lock_guard lock(memory_->mutex);
  const Origin origin = memory_->origin.value_or(Origin{});
  position.push(memory_->origin ? 1 : 0);
  position.push(static_cast<std::int64_t>(origin.job_seed));
  position.push(static_cast<std::int64_t>(origin.path));
}

void CacheStage::restore_lasting(Position& position) const {
  const bool decided = position.pop() != 0;
  const auto job_seed = static_cast<std::uint64_t>(position.pop());
  const auto path = static_cast<std::uint64_t>(position.pop());
  if (decided) settle({job_seed, path});
}

void CacheStage::settle(const Origin& origin) const {
  const std::lock_guard lock(memory_->mutex);
  if (!memory_->origin) memory_->origin = origin;
  if (*memory_->origin == origin) return;
  throw FailedPrecondition(errors::kPosition,
                           {.what = "the cache holds what another seed, or another place in a pipeline, gave",
                            .where = describe(),
                            .help = path_.empty() ? "resume in a new dataset, before anything reads it"
                                                  : "remove the file to make it anew"});
}

IteratorPtr CacheStage::make_iterator(const IterationContext& context) const {
  if (!path_.empty() && std::filesystem::exists(path_)) {
    auto reader = std::make_unique<FromFileIterator>(path_, print_tree(*input()));
    settle(reader->origin());
    return reader;
  }
  if (const auto filled = contents()) {
    if (!filled->rows) return std::make_unique<FromMemoryIterator>(filled);
    return make_row_iterator(filled->rows->row_source(), filled->rows->make_index_iterator(context));
  }
  // Whichever pass fills the cache, it holds what the first one would have: a resumed program must see the same.
  IterationContext first_pass = context;
  first_pass.epoch = 0;
  Origin origin{context.job_seed, context.path};
  {
    const std::lock_guard lock(memory_->mutex);
    origin = memory_->origin.value_or(origin);
  }
  first_pass.job_seed = origin.job_seed;
  first_pass.path = origin.path;
  std::unique_ptr<CacheWriter> writer;
  if (path_.empty())
    writer = std::make_unique<MemoryWriter>(memory_, origin);
  else
    writer = std::make_unique<FileWriter>(memory_, origin, path_, print_tree(*input()));
  const auto warn = [memory = memory_, where = describe()] {
    const std::lock_guard lock(memory->mutex);
    if (!std::exchange(memory->warned, true))
      log_warning(
          str(where, ": an element failed, so this pass is not remembered; put ignore_errors before the cache"));
  };
  return std::make_unique<FillingIterator>(input()->iterate(first_pass), input()->cardinality(), std::move(writer),
                                           warn);
}

}  // namespace lockstep::data
