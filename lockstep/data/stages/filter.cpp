#include "lockstep/data/stages/filter.h"

#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/data/place.h"
#include "lockstep/data/random_key.h"
#include "lockstep/data/user_call.h"

namespace lockstep::data {
namespace {

class FilterIterator final : public ElementIterator {
 public:
  FilterIterator(IteratorPtr input, Predicate predicate) : input_(std::move(input)), predicate_(std::move(predicate)) {}

  bool next(Element& element) override {
    while (input_->next(element))
      if (call_for_stage("filter", [&] { return predicate_(element); })) return true;
    return false;
  }

 private:
  IteratorPtr input_;
  Predicate predicate_;
};

class TakeWhileIterator final : public ElementIterator {
 public:
  TakeWhileIterator(IteratorPtr input, Predicate predicate)
      : input_(std::move(input)), predicate_(std::move(predicate)) {}

  bool next(Element& element) override {
    ended_ = ended_ || !input_->next(element) || !call_for_stage("take_while", [&] { return predicate_(element); });
    return !ended_;
  }

 private:
  IteratorPtr input_;
  Predicate predicate_;
  bool ended_ = false;
};

/// The contents of an element as bytes: equal exactly for equal elements.
std::string contents(const Element& element) {
  std::string bytes;
  if (element.skeleton) {
    bytes += str(element.skeleton->marks.size(), ';');
    for (const auto& mark : element.skeleton->marks) {
      if (const auto* key = std::get_if<std::string>(&mark)) {
        bytes += str(key->size(), ':', *key);
      } else {
        bytes += str(std::get<std::int64_t>(mark), ';');
      }
    }
  }
  for (const Component& component : element.components) {
    bytes += to_string(ComponentSpec::of(component));
    if (const auto* tensor = std::get_if<at::Tensor>(&component)) {
      if (!tensor->defined())
        throw InvalidArgument(errors::kStructure, {.what = "a tensor without contents cannot be compared",
                                                   .where = "unique",
                                                   .seen = describe(element),
                                                   .help = "leave such elements out with a filter before it"});
      const at::Tensor plain = tensor->cpu().resolve_conj().resolve_neg().contiguous();
      bytes.append(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
    } else if (const auto* text = std::get_if<std::string>(&component)) {
      bytes += str(text->size(), ':', *text);
    } else if (const auto* strings = std::get_if<Strings>(&component)) {
      for (const std::string& each : *strings) bytes += str(each.size(), ':', each);
    } else {
      throw InvalidArgument(errors::kStructure,
                            {.what = "datasets within elements cannot be compared", .where = "unique"});
    }
  }
  return bytes;
}

class UniqueIterator final : public ElementIterator {
 public:
  explicit UniqueIterator(IteratorPtr input) : input_(std::move(input)) {}

  bool next(Element& element) override {
    while (input_->next(element))
      if (seen_.insert(contents(element)).second) return true;
    return false;
  }

 private:
  IteratorPtr input_;
  std::unordered_set<std::string> seen_;
};

class IgnoreErrorsIterator final : public ElementIterator {
 public:
  IgnoreErrorsIterator(IteratorPtr input, IgnoreErrorsOptions options, ErrorCounter::Where where)
      : input_(std::move(input)), options_(std::move(options)), where_(where) {}

  bool next(Element& element) override {
    for (std::int64_t errors = 1;; ++errors) {
      ++where_.place;
      try {
        return input_->next(element);
      } catch (const std::exception& error) {
        require_unwanted(std::current_exception());
        count(error.what());
        if (errors >= options_.give_up_after) throw;
      } catch (...) {
        count("an exception that is no std::exception");
        if (errors >= options_.give_up_after) throw;
      }
    }
  }

 private:
  void count(const std::string& message) const {
    if (options_.counter && !options_.counter->add(message, where_)) return;
    if (options_.log) log_warning(str("ignore_errors left out an element: ", message));
  }

  IteratorPtr input_;
  IgnoreErrorsOptions options_;
  ErrorCounter::Where where_;  // of what was read last
};

/// Each element too many is an error in its place; so is the end if it comes too early, once.
class AssertCardinalityIterator final : public ElementIterator {
 public:
  AssertCardinalityIterator(IteratorPtr input, Cardinality expected) : input_(std::move(input)), expected_(expected) {}

  bool next(Element& element) override {
    if (ended_) return false;
    ++count_;  // also if it fails
    if (!input_->next(element)) {
      --count_;
      ended_ = true;
      if (is_too_few()) fail("fewer", "");
      return false;
    }
    if (expected_.is_known() && count_ > expected_.value()) fail("more", "at least ");
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    if (ended_) return 0;
    const std::int64_t skipped = input_->skip(count);
    count_ += skipped;
    if (skipped == count) return skipped;
    ended_ = true;
    return skipped + (is_too_few() ? 1 : 0);
  }

 private:
  bool is_too_few() const { return expected_.is_infinite() || (expected_.is_known() && count_ < expected_.value()); }

  [[noreturn]] void fail(const char* how_many, const char* at_least) const {
    throw FailedPrecondition(errors::kCardinality,
                             {.what = str("the dataset has ", how_many, " elements than assert_cardinality promised"),
                              .where = "assert_cardinality",
                              .seen = str("promised ", to_string(expected_), ", found ", at_least, count_)});
  }

  IteratorPtr input_;
  Cardinality expected_;
  std::int64_t count_ = 0;
  bool ended_ = false;
};

}  // namespace

StagePtr FilterStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<FilterStage>(std::move(inputs.front()), predicate_);
}
Cardinality FilterStage::cardinality() const {
  return input()->cardinality() == Cardinality(0) ? Cardinality(0) : Cardinality::unknown();
}
IteratorPtr FilterStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<FilterIterator>(input()->iterate(context), predicate_);
}

StagePtr TakeWhileStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<TakeWhileStage>(std::move(inputs.front()), predicate_);
}
IteratorPtr TakeWhileStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<TakeWhileIterator>(input()->iterate(context), predicate_);
}

StagePtr UniqueStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<UniqueStage>(std::move(inputs.front()));
}
Cardinality UniqueStage::cardinality() const { return Cardinality::unknown(); }
IteratorPtr UniqueStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<UniqueIterator>(input()->iterate(context));
}

std::string ErrorCounter::last_message() const {
  const std::lock_guard lock(mutex_);
  return last_message_;
}
bool ErrorCounter::add(const std::string& message, const Where& where) {
  constexpr std::size_t kPasses = 1024;
  const std::lock_guard lock(mutex_);
  const auto [pass, is_new] = last_places_.try_emplace(where.pass, 0);
  if (is_new) passes_.push_back(where.pass);
  if (where.is_resumed && where.place <= pass->second) return false;
  pass->second = where.place;
  if (passes_.size() > kPasses) {
    last_places_.erase(passes_.front());
    passes_.pop_front();
  }
  last_message_ = message;
  count_.fetch_add(1);
  return true;
}

StagePtr IgnoreErrorsStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<IgnoreErrorsStage>(std::move(inputs.front()), options_);
}
Cardinality IgnoreErrorsStage::cardinality() const {
  const Cardinality all = input()->cardinality();
  return all.is_known() && all.value() > 0 ? Cardinality::unknown() : all;
}
IteratorPtr IgnoreErrorsStage::make_iterator(const IterationContext& context) const {
  // Several of one pipeline may share a counter: each has places of its own, also in a pipeline that is built again.
  const auto below = static_cast<std::uint64_t>(count_stages(*input(), kind()));
  const ErrorCounter::Where where{.pass = mix(context.pass_key(), below), .is_resumed = context.is_resumed};
  return std::make_unique<IgnoreErrorsIterator>(input()->iterate(context), options_, where);
}

std::string AssertCardinalityStage::describe() const { return str("assert_cardinality(", to_string(expected_), ")"); }
StagePtr AssertCardinalityStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<AssertCardinalityStage>(std::move(inputs.front()), expected_);
}
IteratorPtr AssertCardinalityStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<AssertCardinalityIterator>(input()->iterate(context), expected_);
}

std::string OptionsStage::describe() const {
  return str("with_options(auto-shard ", lockstep::to_string(options_.auto_shard_policy), ")");
}
StagePtr OptionsStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<OptionsStage>(std::move(inputs.front()), options_);
}

}  // namespace lockstep::data
