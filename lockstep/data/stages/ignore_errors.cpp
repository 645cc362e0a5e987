#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/pipeline.h"
#include "lockstep/data/random_key.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {
namespace {

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
        rethrow_if_fatal(std::current_exception());
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

}  // namespace

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

StagePtr make_ignore_errors(StagePtr input, IgnoreErrorsOptions options) {
  return make_stage({std::move(input)},
                    {.kind = "ignore_errors",
                     .cardinality =
                         [](const Stage& below) {
                           const Cardinality all = below.cardinality();
                           return all.is_infinite() ? all : unknown_unless_empty(below);
                         },
                     .iterate =
                         [options = std::move(options)](const Stage& below, const IterationContext& context) {
                           // Several of one pipeline may share a counter: each has places of its own, also in a
                           // pipeline that is built again.
                           const std::int64_t others = count_stages(below, "ignore_errors");
                           const ErrorCounter::Where where{
                               .pass = mix(context.pass_key(), static_cast<std::uint64_t>(others)),
                               .is_resumed = context.is_resumed};
                           return std::make_unique<IgnoreErrorsIterator>(below.iterate(context), options, where);
                         }});
}

}  // namespace lockstep::data
