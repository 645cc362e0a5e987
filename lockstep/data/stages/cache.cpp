#include "lockstep/data/stages/cache.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/element_bytes.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/data/stages/sources.h"

namespace lockstep::data {
namespace {

constexpr const char* kFileHeader = "lockstep-cache 1\n";
constexpr std::string_view kFileEnd = "lockstep-cache end\n";

/// A copy that shares no memory: what is done to a cached element must not change the cache.
Element copy_of(const Element& element) {
  Element copy = element;
  for (Component& component : copy.components)
    if (auto* tensor = std::get_if<at::Tensor>(&component)) *tensor = tensor->clone();
  return copy;
}

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

class FillMemoryIterator final : public ElementIterator {
 public:
  FillMemoryIterator(IteratorPtr input, std::shared_ptr<CacheStage::Memory> memory)
      : input_(std::move(input)), memory_(std::move(memory)) {}

  bool next(Element& element) override {
    if (!input_->next(element)) {
      if (complete_) publish();
      complete_ = false;
      return false;
    }
    if (complete_) elements_.push_back(copy_of(element));
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    if (count > 0) {  // what is not computed cannot be remembered
      complete_ = false;
      elements_.clear();
    }
    return input_->skip(count);
  }

 private:
  void publish() {
    StagePtr rows = can_be_one_batch(elements_) ? make_slices(stack(std::move(elements_), "cache")) : nullptr;
    const std::lock_guard lock(memory_->mutex);
    if (memory_->complete) return;
    if (rows)
      memory_->rows = std::move(rows);
    else
      memory_->elements = std::move(elements_);
    memory_->complete = true;
  }

  IteratorPtr input_;
  std::shared_ptr<CacheStage::Memory> memory_;
  std::vector<Element> elements_;
  bool complete_ = true;
};

class FromMemoryIterator final : public ElementIterator {
 public:
  explicit FromMemoryIterator(std::shared_ptr<CacheStage::Memory> memory) : memory_(std::move(memory)) {}

  bool next(Element& element) override {
    if (at_ == memory_->elements.size()) return false;
    element = copy_of(memory_->elements[at_++]);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    const auto left = static_cast<std::int64_t>(memory_->elements.size() - at_);
    at_ += static_cast<std::size_t>(std::min(count, left));
    return std::min(count, left);
  }

 private:
  std::shared_ptr<CacheStage::Memory> memory_;  // complete: it does not change any more
  std::size_t at_ = 0;
};

class WriteFileIterator final : public ElementIterator {
 public:
  WriteFileIterator(IteratorPtr input, std::string path, const std::string& pipeline)
      : input_(std::move(input)), path_(std::move(path)), temporary_(temporary_name(path_)) {
    writer_ = std::make_unique<TFRecordWriter>(temporary_);
    writer_->write(kFileHeader + pipeline);
  }
  ~WriteFileIterator() override {
    if (!writer_) return;
    writer_ = nullptr;
    std::remove(temporary_.c_str());
  }

  bool next(Element& element) override {
    if (input_->next(element)) {
      if (writer_) writer_->write(to_bytes(element));
      return true;
    }
    if (writer_) {
      writer_->write(kFileEnd);
      writer_->close();
      writer_ = nullptr;
      // Complete or not there at all: nobody ever sees half of it under its name.
      std::filesystem::rename(temporary_, path_);
    }
    return false;
  }
  std::int64_t skip(std::int64_t count) override {
    if (count > 0 && writer_) {
      writer_ = nullptr;
      std::remove(temporary_.c_str());
    }
    return input_->skip(count);
  }

 private:
  static std::string temporary_name(const std::string& path) {
    static std::atomic<int> number{0};
    return str(path, ".", ::getpid(), ".", number.fetch_add(1), ".tmp");
  }

  IteratorPtr input_;
  std::string path_;
  std::string temporary_;
  std::unique_ptr<TFRecordWriter> writer_;
};

class ReadFileIterator final : public ElementIterator {
 public:
  ReadFileIterator(const std::string& path, const std::string& pipeline) : reader_(path) {
    if (!reader_.next() || reader_.record() != kFileHeader + pipeline)
      throw FailedPrecondition(errors::kCacheFile, {.what = "the cache file was written by another pipeline",
                                                    .where = path,
                                                    .help = "remove the file to make it anew"});
  }

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
    if (!reader_.next())
      throw DataLoss(errors::kCacheFile, {.what = "the cache file is cut off", .where = reader_.path()});
    ended_ = reader_.record() == kFileEnd;
    return !ended_;
  }

  TFRecordReader reader_;
  bool ended_ = false;
};

}  // namespace

CacheStage::CacheStage(StagePtr input, std::string path)
    : PassThroughStage({std::move(input)}), path_(std::move(path)), memory_(std::make_shared<Memory>()) {}

std::string CacheStage::describe() const { return path_.empty() ? "cache" : str("cache(", path_, ")"); }

StagePtr CacheStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<CacheStage>(std::move(inputs.front()), path_);
}

StagePtr CacheStage::rows_in_memory() const {
  const std::lock_guard lock(memory_->mutex);
  return memory_->rows;
}

RowSourcePtr CacheStage::row_source() const {
  if (!path_.empty()) return nullptr;
  if (const StagePtr rows = rows_in_memory()) return rows->row_source();
  return nullptr;
}

std::unique_ptr<IndexIterator> CacheStage::make_index_iterator(const IterationContext& context) const {
  const StagePtr rows = rows_in_memory();
  return rows ? rows->make_index_iterator(context) : nullptr;
}

IteratorPtr CacheStage::make_iterator(const IterationContext& context) const {
  // Whichever pass fills the cache, it holds what the first one would have: a resumed program must see the same.
  IterationContext first_pass = context;
  first_pass.epoch = 0;
  if (path_.empty()) {
    bool complete = false;
    StagePtr rows;
    {
      const std::lock_guard lock(memory_->mutex);
      complete = memory_->complete;
      rows = memory_->rows;
    }
    if (rows) return make_row_iterator(rows->row_source(), rows->make_index_iterator(context));
    if (complete) return std::make_unique<FromMemoryIterator>(memory_);
    return std::make_unique<FillMemoryIterator>(input()->iterate(first_pass), memory_);
  }
  const std::string pipeline = print_tree(*input());
  if (std::filesystem::exists(path_)) return std::make_unique<ReadFileIterator>(path_, pipeline);
  return std::make_unique<WriteFileIterator>(input()->iterate(first_pass), path_, pipeline);
}

}  // namespace lockstep::data
