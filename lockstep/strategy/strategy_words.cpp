#include "lockstep/strategy/strategy_words.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/strategy_local.h"

namespace lockstep::detail {

struct ApiWords {
  Vocabulary words;
};

namespace {

Vocabulary words_of(const Strategy& strategy) {
  const ApiWords* const found = find_strategy_local<ApiWords>(strategy);
  return found == nullptr ? Vocabulary() : found->words;
}

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
  if (const ContextEntry* const here = current_context()) return words_of(*here->strategy);
  const std::lock_guard lock(speakers().mutex);
  const auto& strategies = speakers().strategies;
  if (strategies.empty()) return speakers().last;
  const Vocabulary words = words_of(*strategies[0]);
  const bool are_alike =
      std::ranges::all_of(strategies, [&](const Strategy* other) { return words_of(*other).data() == words.data(); });
  return are_alike ? words : Vocabulary();
}

}  // namespace

void set_words(Strategy& strategy, Vocabulary words) {
  const std::lock_guard lock(speakers().mutex);
  strategy_local<ApiWords>(strategy).words = words;
  set_vocabulary_outside_of_scopes(words_of_this_place);
}

WordsOf::WordsOf(const Strategy& strategy) : VocabularyScope(words_of(strategy)) {}

void enter_speaker(const Strategy& strategy) {
  const std::lock_guard lock(speakers().mutex);
  speakers().strategies.push_back(&strategy);
}

void leave_speaker(const Strategy& strategy) {
  const std::lock_guard lock(speakers().mutex);
  if (std::erase(speakers().strategies, &strategy) > 0) speakers().last = words_of(strategy);
}

}  // namespace lockstep::detail
