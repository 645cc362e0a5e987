#include "lockstep/strategy/strategy_words.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/strategy_access.h"

namespace lockstep::detail {
namespace {

struct Speakers {
  std::mutex mutex;
  std::vector<const Strategy*> strategies;
  Vocabulary last;  ///< of the strategy that ended last: what is left of it speaks on
};

Speakers& speakers() {
  static Speakers& all = *new Speakers;  // never destroyed: threads may outlive static objects
  return all;
}

Vocabulary words_of_this_place() {
  if (const ContextEntry* const here = current_context()) return StrategyAccess::words(*here->strategy);
  const std::lock_guard lock(speakers().mutex);
  const auto& strategies = speakers().strategies;
  if (strategies.empty()) return speakers().last;
  const Vocabulary words = StrategyAccess::words(*strategies[0]);
  const bool are_alike = std::ranges::all_of(
      strategies, [&](const Strategy* other) { return StrategyAccess::words(*other).data() == words.data(); });
  return are_alike ? words : Vocabulary();
}

}  // namespace

void set_words(Strategy& strategy, Vocabulary words) {
  const std::lock_guard lock(speakers().mutex);
  StrategyAccess::set_words(strategy, words);
  set_vocabulary_outside_of_scopes(words_of_this_place);
}

WordsOf::WordsOf(const Strategy& strategy) : VocabularyScope(StrategyAccess::words(strategy)) {}

void enter_speaker(const Strategy& strategy) {
  const std::lock_guard lock(speakers().mutex);
  speakers().strategies.push_back(&strategy);
}

void leave_speaker(const Strategy& strategy) {
  const std::lock_guard lock(speakers().mutex);
  if (std::erase(speakers().strategies, &strategy) > 0) speakers().last = StrategyAccess::words(strategy);
}

}  // namespace lockstep::detail
