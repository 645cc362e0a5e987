#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/random_key.h"
#include "lockstep/data/stages/sparse_rows.h"

namespace lockstep::data {
namespace {

template <class Word>
void gather_words(const void* from, std::span<const std::int64_t> indices, void* to) {
  const auto* source = static_cast<const Word*>(from);
  auto* target = static_cast<Word*>(to);
  for (const std::int64_t index : indices) *target++ = source[index];
}

void gather_bytes(const void* from, std::size_t row_bytes, std::span<const std::int64_t> indices, void* to) {
  switch (row_bytes) {
    case 0: return;
    case 1: return gather_words<std::uint8_t>(from, indices, to);
    case 4: return gather_words<std::uint32_t>(from, indices, to);
    case 8: return gather_words<std::uint64_t>(from, indices, to);
    default: break;
  }
  const auto* source = static_cast<const char*>(from);
  auto* target = static_cast<char*>(to);
  constexpr std::size_t kAhead = 4;  // rows are scattered in memory: prefetch the next ones while this one is copied
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i + kAhead < indices.size()) {
      const char* soon = source + static_cast<std::size_t>(indices[i + kAhead]) * row_bytes;
      for (std::size_t at = 0; at < std::min<std::size_t>(row_bytes, 512); at += 64) __builtin_prefetch(soon + at);
    }
    std::memcpy(target, source + static_cast<std::size_t>(indices[i]) * row_bytes, row_bytes);
    target += row_bytes;
  }
}

void require_set(const at::Tensor& tensor, std::size_t component, const std::string& where) {
  if (tensor.defined()) return;
  throw InvalidArgument(errors::kShape, {.what = str("component ", component, " is an undefined tensor"),
                                         .where = where,
                                         .help = "assign the tensor before you make a dataset of it"});
}

void require_set_tensors(const Element& element, const std::string& where) {
  for (std::size_t i = 0; i < element.size(); ++i)
    if (const auto* tensor = std::get_if<at::Tensor>(&element.components[i])) require_set(*tensor, i, where);
}

void require_readable_rows(const Element& batch, const std::string& where) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto* tensor = std::get_if<at::Tensor>(&batch.components[i]);
    if (tensor == nullptr || tensor->layout() == at::kStrided || SparseRows::can_read(tensor->layout())) continue;
    throw InvalidArgument(
        errors::kShape,
        {.what = str("component ", i, " has a layout from which rows cannot be taken one by one"),
         .where = where,
         .seen = lockstep::str(to_string(ComponentSpec::of(batch.components[i])), " of layout ", tensor->layout()),
         .help = "give tensor.to_dense(), or from_tensors for the whole"});
  }
}

class TensorRows final : public RowSource {
  static constexpr RowsHelp kHelp{
      .no_rows = "give tensors with a first dimension, or call from_tensors for one element",
      .unequal = "give tensors with equal first dimensions"};

 public:
  explicit TensorRows(Element batch) : batch_(std::move(batch)), size_(row_count(batch_, "from_tensor_slices", kHelp)) {
    sparse_.resize(batch_.size());
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      auto* tensor = std::get_if<at::Tensor>(&batch_.components[i]);
      const bool is_sparse = tensor != nullptr && SparseRows::can_read(tensor->layout());
      if (is_sparse && (tensor->layout() != at::kSparse || tensor->sparse_dim() > 0))
        sparse_[i].emplace(*tensor);
      else if (tensor != nullptr)
        *tensor = tensor->detach().to_dense().resolve_conj().resolve_neg().contiguous();
    }
  }

  std::int64_t size() const override { return size_; }

  void gather(std::span<const std::int64_t> indices, BufferPool& pool, Element& batch) const override {
    batch.skeleton = batch_.skeleton;
    batch.components.clear();
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      const Component& component = batch_.components[i];
      if (sparse_[i])
        batch.components.emplace_back(sparse_[i]->gather(indices));
      else if (const auto* tensor = std::get_if<at::Tensor>(&component))
        batch.components.emplace_back(gather_tensor(*tensor, indices, pool));
      else
        batch.components.emplace_back(gather_strings(std::get<Strings>(component), indices));
    }
  }

  /// The spec of the rows.
  ElementSpec spec() const {
    ElementSpec rows = ElementSpec::of(batch_).unbatched();
    for (std::size_t i = 0; i < batch_.size(); ++i)
      if (sparse_[i] && sparse_[i]->has_dense_rows()) (*rows.components)[i].is_sparse = false;
    return rows;
  }

  Element row(std::int64_t index) const override {
    Element result;
    result.skeleton = batch_.skeleton;
    result.components.reserve(batch_.size());
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      const Component& component = batch_.components[i];
      if (sparse_[i])
        result.components.emplace_back(sparse_[i]->row(index));
      else if (const auto* tensor = std::get_if<at::Tensor>(&component))
        result.components.emplace_back(copy_row(*tensor, index));
      else
        result.components.emplace_back(std::get<Strings>(component)[index]);
    }
    return result;
  }

 private:
  static at::Tensor copy_row(const at::Tensor& source, std::int64_t index) {
    if (!source.is_cpu()) return source.select(0, index).clone();
    at::Tensor result = at::empty(source.sizes().slice(1), source.options());
    const std::size_t bytes = result.nbytes();
    if (bytes > 0)
      std::memcpy(result.mutable_data_ptr(),
                  static_cast<const char*>(source.const_data_ptr()) + static_cast<std::size_t>(index) * bytes, bytes);
    return result;
  }

  static at::Tensor gather_tensor(const at::Tensor& source, std::span<const std::int64_t> indices, BufferPool& pool) {
    if (!source.is_cpu()) {
      const at::Tensor on_cpu = at::from_blob(const_cast<std::int64_t*>(indices.data()),
                                              {static_cast<std::int64_t>(indices.size())}, at::kLong);
      return at::index_select(source, 0, on_cpu.to(source.device()));
    }
    std::vector<std::int64_t> shape = source.sizes().vec();
    shape.front() = static_cast<std::int64_t>(indices.size());
    at::Tensor result = pool.take(shape, source.scalar_type());
    const std::size_t row_bytes = source.size(0) == 0 ? 0 : source.nbytes() / static_cast<std::size_t>(source.size(0));
    gather_bytes(source.const_data_ptr(), row_bytes, indices, result.mutable_data_ptr());
    return result;
  }

  static Strings gather_strings(const Strings& source, std::span<const std::int64_t> indices) {
    std::vector<std::string> values;
    values.reserve(indices.size());
    for (const std::int64_t index : indices) values.push_back(source[index]);
    return values;
  }

  Element batch_;
  std::vector<std::optional<SparseRows>> sparse_;  // for sparse components
  std::int64_t size_;
};

class RangeRows final : public RowSource {
 public:
  RangeRows(std::int64_t start, std::int64_t step, std::int64_t size) : start_(start), step_(step), size_(size) {}

  std::int64_t size() const override { return size_; }

  void gather(std::span<const std::int64_t> indices, BufferPool& pool, Element& batch) const override {
    at::Tensor values = pool.take({static_cast<std::int64_t>(indices.size())}, at::kLong);
    auto* to = values.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) *to++ = start_ + index * step_;
    batch = Element::of(std::move(values));
  }

  Element row(std::int64_t index) const override {
    return Element::of(at::scalar_tensor(start_ + index * step_, at::kLong));
  }

 private:
  std::int64_t start_;
  std::int64_t step_;
  std::int64_t size_;
};

class CountingIndices final : public IndexIterator {
 public:
  explicit CountingIndices(std::int64_t size) : size_(size) {}

  std::size_t next(std::span<std::int64_t> indices) override {
    const auto count =
        static_cast<std::size_t>(std::min<std::int64_t>(size_ - next_, static_cast<std::int64_t>(indices.size())));
    std::iota(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(count), next_);
    next_ += static_cast<std::int64_t>(count);
    return count;
  }

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t skipped = std::min(count, size_ - next_);
    next_ += skipped;
    return skipped;
  }

 private:
  std::int64_t size_;
  std::int64_t next_ = 0;
};

class ElementsIterator final : public ElementIterator {
 public:
  explicit ElementsIterator(std::shared_ptr<const std::vector<Element>> elements) : elements_(std::move(elements)) {}

  bool next(Element& element) override {
    if (at_ == elements_->size()) return false;
    element = own_copy((*elements_)[at_++]);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    const std::int64_t skipped = std::min(count, static_cast<std::int64_t>(elements_->size() - at_));
    at_ += static_cast<std::size_t>(skipped);
    return skipped;
  }

 private:
  std::shared_ptr<const std::vector<Element>> elements_;
  std::size_t at_ = 0;
};

}  // namespace

IteratorPtr iterate_elements(std::shared_ptr<const std::vector<Element>> elements) {
  return std::make_unique<ElementsIterator>(std::move(elements));
}

StagePtr make_elements(std::string kind, std::vector<Element> elements, ElementSpec spec) {
  std::string text = str(kind, "(", to_string(spec), ")");
  return make_stage({},
                    {.kind = std::move(kind),
                     .text = std::move(text),
                     .traits = {.source = StageTraits::Source::Memory, .passes_over = true, .runs_functions = false},
                     .cardinality = [count = std::ssize(elements)](const Stage&) { return Cardinality(count); },
                     .spec = [spec = std::move(spec)](const Stage&) { return spec; },
                     .iterate = [all = std::make_shared<const std::vector<Element>>(std::move(elements))](
                                    const Stage&, const IterationContext&) { return iterate_elements(all); }});
}

StagePtr make_from_tensors(Element element) {
  require_set_tensors(element, "from_tensors");
  ElementSpec spec = ElementSpec::of(element);
  return make_elements("from_tensors", {std::move(element)}, std::move(spec));
}

StagePtr make_rows(RowsDescription description, RowSourcePtr rows, ElementSpec spec) {
  const auto text = [&](const std::string& contents) {
    return str(description.kind, "(", description.detail, contents.empty() ? "" : "; ", contents, ")");
  };
  const auto order = [size = rows->size()](const Stage&, const IterationContext&) {
    return std::make_unique<CountingIndices>(size);
  };
  return make_stage(
      {}, {.kind = description.kind,
           .text = text(""),
           .identity = text(description.contents),
           .traits = {.source = description.is_list ? StageTraits::Source::List : StageTraits::Source::Memory,
                      .rows = StageTraits::Rows::One,
                      .passes_over = true,
                      .runs_functions = description.runs_functions},
           .cardinality = [size = rows->size()](const Stage&) { return Cardinality(size); },
           .spec = [spec = std::move(spec)](const Stage&) { return spec; },
           .rows = [rows](const Stage&) { return rows; },
           .order = order,
           .iterate = [rows, order](
                          const Stage& stage,
                          const IterationContext& context) { return make_row_iterator(rows, order(stage, context)); }});
}

StagePtr make_generator(std::function<Generator()> make, ElementSpec spec, GeneratorOptions options) {
  const auto obstacle = [replayable = options.replayable]() -> std::optional<std::string> {
    if (replayable) return std::nullopt;
    return "the generator may yield other elements next time (see GeneratorOptions::replayable)";
  };
  return make_stage({},
                    {.kind = "from_generator",
                     .traits = {.source = StageTraits::Source::Memory},
                     .cardinality = [count = options.cardinality](const Stage&) { return count; },
                     .reliability = [](const Stage&) { return Reliability::Promised; },
                     .spec = [spec = options.spec.value_or(spec)](const Stage&) { return spec; },
                     .position_obstacle = obstacle,
                     .iterate =
                         [make = std::move(make)](const Stage&, const IterationContext&) {
                           return make_function_iterator([generate = make(), done = false](Element& element) mutable {
                             done = done || !generate(element);
                             return !done;
                           });
                         }});
}

std::string summary(const Strings& strings) {
  constexpr std::size_t kLongest = 400;
  std::string all;
  for (const std::string& each : strings) {
    if (all.size() > kLongest) break;
    all += str(all.empty() ? "" : ", ", each);
  }
  std::uint64_t sum = mix(static_cast<std::uint64_t>(strings.size()));
  for (const std::string& each : strings) {
    sum = mix(sum, each.size());
    for (std::size_t at = 0; at < each.size(); at += sizeof sum) {
      std::uint64_t word = 0;
      std::memcpy(&word, each.data() + at, std::min(sizeof word, each.size() - at));
      sum = mix(sum ^ word);
    }
  }
  // The checksum is always included: a comma may be part of a name.
  if (all.size() > kLongest)
    all = str(strings[0].substr(0, kLongest / 2), " ... ", strings[strings.size() - 1].substr(0, kLongest / 2));
  return str(all, " #", std::hex, sum);
}

StagePtr make_slices(Element batch) {
  require_set_tensors(batch, "from_tensor_slices");
  require_readable_rows(batch, "from_tensor_slices");
  // Byte strings are identified by their contents: most often they are names of files.
  std::string contents;
  for (const Component& component : batch.components)
    if (const auto* strings = std::get_if<Strings>(&component)) contents += summary(*strings);
  auto rows = std::make_shared<TensorRows>(std::move(batch));
  ElementSpec spec = rows->spec();
  std::string detail = str(counted(rows->size(), "row"), ": ", to_string(spec));
  return make_rows(
      {.kind = "from_tensor_slices", .detail = std::move(detail), .contents = std::move(contents), .is_list = true},
      std::move(rows), std::move(spec));
}

StagePtr make_range(std::int64_t start, std::int64_t stop, std::int64_t step) {
  if (step == 0)
    refuse_option("range", "the step of a range must not be 0",
                  "give a step above 0 to count up, or below 0 to count down");
  // Unsigned, so that the whole range of int64 does not overflow.
  const auto unsigned_of = [](std::int64_t number) { return static_cast<std::uint64_t>(number); };
  const std::uint64_t distance =
      step > 0 ? unsigned_of(stop) - unsigned_of(start) : unsigned_of(start) - unsigned_of(stop);
  const std::uint64_t stride = step > 0 ? unsigned_of(step) : -unsigned_of(step);
  const bool empty = step > 0 ? stop <= start : start <= stop;
  const std::uint64_t exact = empty ? 0 : (distance - 1) / stride + 1;
  const auto size = static_cast<std::int64_t>(std::min(exact, unsigned_of(std::numeric_limits<std::int64_t>::max())));
  std::string detail = start == 0 && step == 1 ? str(stop) : str(start, ", ", stop, step == 1 ? "" : str(", ", step));
  return make_rows({.kind = "range", .detail = std::move(detail)}, std::make_shared<RangeRows>(start, step, size),
                   ElementSpec{{{ComponentSpec::tensor(at::kLong, PartialShape({}))}}});
}

at::Tensor stack_slices(const std::vector<at::Tensor>& slices) {
  if (slices.empty())
    throw InvalidArgument(errors::kShape, {.what = "the vector of tensors is empty",
                                           .where = "from_tensor_slices",
                                           .help = "give at least one tensor; range(0) is a dataset without elements"});
  for (std::size_t i = 0; i < slices.size(); ++i) require_set(slices[i], i, "from_tensor_slices");
  for (std::size_t i = 1; i < slices.size(); ++i) {
    if (slices[i].sizes() == slices[0].sizes() && slices[i].scalar_type() == slices[0].scalar_type()) continue;
    throw InvalidArgument(
        errors::kShape, {.what = "a vector of tensors becomes one component, so they must have the same shape and type",
                         .where = "from_tensor_slices",
                         .seen = str("tensor 0 is ", to_string(ComponentSpec::of(slices[0])), ", tensor ", i, " is ",
                                     to_string(ComponentSpec::of(slices[i]))),
                         .help = "use a std::tuple or std::array for several components"});
  }
  return at::stack(slices);
}

Dataset<at::Tensor> range(std::int64_t stop) { return range(0, stop); }

Dataset<at::Tensor> range(std::int64_t start, std::int64_t stop, std::int64_t step) {
  return Dataset<at::Tensor>(make_range(start, stop, step));
}

Dataset<at::Tensor> from_tensor_slices(const std::vector<at::Tensor>& slices) {
  return from_tensor_slices(stack_slices(slices));
}

Dataset<std::string> from_tensor_slices(std::vector<std::string> values) {
  return from_tensor_slices(Strings(std::move(values)));
}

}  // namespace lockstep::data
