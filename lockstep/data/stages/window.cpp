#include <algorithm>
#include <deque>
#include <limits>

#include "lockstep/data/iterators.h"

namespace lockstep::data {
namespace {

/// Elements from the first to the last of a window, without overflow.
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
    std::exception_ptr error;  // a window with a failed element fails as a whole
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

}  // namespace

StagePtr make_window(StagePtr input, std::int64_t size, WindowOptions options) {
  if (options.shift == 0) options.shift = size;
  if (size < 1 || options.shift < 1 || options.stride < 1)
    refuse_option("window",
                  str("size, shift and stride of a window must be >= 1, got ", size, ", ", options.shift, " and ",
                      options.stride),
                  "call window(size) for windows that do not overlap");
  return make_stage({std::move(input)},
                    {.kind = "window",
                     .text = str("window(", size, ", shift ", options.shift, ", stride ", options.stride,
                                 options.drop_remainder ? ", drop_remainder)" : ")"),
                     .traits = {.source = StageTraits::Source::Inputs, .runs_functions = false},
                     .cardinality =
                         [size, options](const Stage& below) {
                           const Cardinality all = below.cardinality();
                           if (!all.is_known()) return all;
                           if (!options.drop_remainder) return batched(all, options.shift, false);
                           const std::int64_t span = window_span(size, options.stride);
                           return Cardinality(all.value() < span ? 0 : (all.value() - span) / options.shift + 1);
                         },
                     .spec = [](const Stage&) { return ElementSpec{{{ComponentSpec::dataset()}}}; },
                     .iterate =
                         [size, options](const Stage& below, const IterationContext& context) {
                           return std::make_unique<WindowIterator>(below.iterate(context), size, options,
                                                                   below.element_spec());
                         }});
}

}  // namespace lockstep::data
