#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/export.h"

// An API on top of the main one has its own terms: errors, log lines and printed values use them.
namespace lockstep {

/// Texts with their replacements; if two share a prefix, the longer one comes first. A text that begins with '='
/// matches only as a whole: "=run" is the `where` of run.
using Vocabulary = std::span<const std::pair<std::string_view, std::string_view>>;

/// `text` in these terms. Quoted text is kept, and so are words within a name or path, such as replica-3.npy.
LOCKSTEP_EXPORT std::string in_words(Vocabulary words, std::string_view text);

/// Marks a part of a text that `in_words` keeps, without quotes: the text of a program's exception.
LOCKSTEP_EXPORT std::string verbatim(std::string_view text);

/// The terms of this thread. Empty: the main API's.
LOCKSTEP_EXPORT Vocabulary vocabulary_here();
/// `text` in the terms of this thread.
LOCKSTEP_EXPORT std::string in_words_here(std::string text);

/// While it exists, this thread uses these terms.
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

/// Sets the terms of threads outside of any scope: `words()`, called on that thread.
LOCKSTEP_EXPORT void set_vocabulary_outside_of_scopes(Vocabulary (*words)());

}  // namespace lockstep
