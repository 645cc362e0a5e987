#include <algorithm>
#include <deque>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/place.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/elements.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {
namespace {

/// Elements from the first to the last of a window; no more than there can be.
std::int64_t window_span(std::int64_t size, std::int64_t stride) {
  std::int64_t span = 0;
  if (__builtin_mul_overflow(size - 1, stride, &span) || __builtin_add_overflow(span, 1, &span))
    return std::numeric_limits<std::int64_t>::max();
  return span;
}

class WindowIterator final : public ElementIterator {
 public:
  WindowIterator(IteratorPtr input, std::int64_t size, WindowOptions options, ElementSpec spec)
      : input_(std::move(input)), size_(size), options_(options), spec_(std::move(spec)) {}

  bool next(Element& element) override {
    const auto span = static_cast<std::size_t>(window_span(size_, options_.stride));
    while (!ended_ && ahead_.size() < span) {
      Place fresh;
      if (to_skip_ > 0 && input_->skip(to_skip_) < to_skip_) ended_ = true;
      to_skip_ = 0;
      if (ended_ || !fresh.read(*input_)) {
        ended_ = true;
        break;
      }
      rethrow_if_fatal(fresh.error);  // it may be in no window
      ahead_.push_back(std::move(fresh));
    }
    std::vector<Element> window;
    std::exception_ptr error;  // a window with an element that failed fails as a whole
    for (std::size_t i = 0; i < ahead_.size() && i < span; i += static_cast<std::size_t>(options_.stride)) {
      window.push_back(ahead_[i].element);
      if (!error) error = ahead_[i].error;
    }
    if (window.empty() || (options_.drop_remainder && static_cast<std::int64_t>(window.size()) < size_)) return false;
    const auto drop = std::min<std::int64_t>(options_.shift, static_cast<std::int64_t>(ahead_.size()));
    ahead_.erase(ahead_.begin(), ahead_.begin() + drop);
    to_skip_ = options_.shift - drop;
    if (error) std::rethrow_exception(error);
    element = Element(std::vector<Component>{make_elements("elements", std::move(window), spec_)});
    return true;
  }

 private:
  IteratorPtr input_;
  std::int64_t size_;
  WindowOptions options_;
  ElementSpec spec_;
  std::deque<Place> ahead_;
  std::int64_t to_skip_ = 0;
  bool ended_ = false;
};

class WindowStage final : public StageOf<WindowStage> {
 public:
  WindowStage(StagePtr input, std::int64_t size, const WindowOptions& options)
      : StageOf({std::move(input)}), size_(size), options_(options) {
    if (options_.shift == 0) options_.shift = size_;
    if (size_ < 1 || options_.shift < 1 || options_.stride < 1)
      throw InvalidArgument(errors::kBadOption, {.what = str("size, shift and stride of a window must be >= 1, got ",
                                                             size_, ", ", options_.shift, " and ", options_.stride),
                                                 .where = "window",
                                                 .help = "call window(size) for windows that do not overlap"});
  }

  std::string_view kind() const override { return "window"; }
  std::string describe() const override {
    return str("window(", size_, ", shift ", options_.shift, ", stride ", options_.stride,
               options_.drop_remainder ? ", drop_remainder)" : ")");
  }
  StageTraits traits() const override { return {.source = StageTraits::Source::Inputs, .runs_functions = false}; }
  Cardinality cardinality() const override {
    const Cardinality all = input()->cardinality();
    if (!all.is_known()) return all;
    const std::int64_t span = window_span(size_, options_.stride);
    if (options_.drop_remainder) return all.value() < span ? 0 : (all.value() - span) / options_.shift + 1;
    return all.value() / options_.shift + (all.value() % options_.shift > 0 ? 1 : 0);
  }
  ElementSpec element_spec() const override { return {{{ComponentSpec::dataset()}}}; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return std::make_unique<WindowIterator>(input()->iterate(context), size_, options_, input()->element_spec());
  }

 private:
  std::int64_t size_;
  WindowOptions options_;
};

}  // namespace

StagePtr make_window(StagePtr input, std::int64_t size, WindowOptions options) {
  return std::make_shared<WindowStage>(std::move(input), size, options);
}

}  // namespace lockstep::data
