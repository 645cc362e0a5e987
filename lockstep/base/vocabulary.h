#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/export.h"

// An API over the main one has its own names for things: errors, log lines and printed values use them.
namespace lockstep {

/// Texts, each with what to write in its place; where two begin alike, the longer one first. One that begins with '='
/// stands for a whole text: "=run" is the `where` of run.
using Vocabulary = std::span<const std::pair<std::string_view, std::string_view>>;

/// `text` in these words. What is in quotes stays, and so do words that are part of a name or path, such as replica-3.npy.
LOCKSTEP_EXPORT std::string in_words(Vocabulary words, std::string_view text);

/// A part of a text that `in_words` leaves as it is, without quotes: the text of an exception of the program.
LOCKSTEP_EXPORT std::string verbatim(std::string_view text);

/// The words of this thread. Empty: the main API's words.
LOCKSTEP_EXPORT Vocabulary vocabulary_here();
/// `text` in the words of this thread.
LOCKSTEP_EXPORT std::string in_words_here(std::string text);

/// While it lives, this thread uses these words.
class LOCKSTEP_EXPORT VocabularyScope {
 public:
  explicit VocabularyScope(Vocabulary words);
  ~VocabularyScope();
  VocabularyScope(const VocabularyScope&) = delete;
  VocabularyScope& operator=(const VocabularyScope&) = delete;

 private:
  Vocabulary outer_;
  bool is_outermost_;
};

/// Gives the words of a thread that is in no scope: `words()`, called on that thread.
LOCKSTEP_EXPORT void set_vocabulary_outside_of_scopes(Vocabulary (*words)());

}  // namespace lockstep
