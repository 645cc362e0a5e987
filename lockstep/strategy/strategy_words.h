#pragma once

#include "lockstep/base/export.h"
#include "lockstep/base/vocabulary.h"

namespace lockstep {
class Strategy;
}

// A thread speaks the words of the strategy that is current there. Where none is, as when a variable is written outside of all
// scopes, it speaks those of the strategies that exist (or of the last one that did), if they all speak alike, and otherwise the main API's.
namespace lockstep::detail {

/// The names of the API through which the program uses `strategy`.
LOCKSTEP_EXPORT void set_words(Strategy& strategy, Vocabulary words);

/// While it lives, this thread speaks as the API of `strategy` does: for calls of it outside of its scope.
class LOCKSTEP_EXPORT WordsOf : public VocabularyScope {
 public:
  explicit WordsOf(const Strategy& strategy);
};

/// One of the strategies that exist, from its beginning to its end. The default strategy is in no program's API and does not count.
LOCKSTEP_EXPORT void enter_speaker(const Strategy& strategy);
LOCKSTEP_EXPORT void leave_speaker(const Strategy& strategy);

}  // namespace lockstep::detail
