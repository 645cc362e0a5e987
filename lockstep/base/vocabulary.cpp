#include "lockstep/base/vocabulary.h"

#include <algorithm>
#include <atomic>
#include <cctype>

namespace lockstep {
namespace {

thread_local Vocabulary words_of_scope;
thread_local bool is_in_scope = false;
std::atomic<Vocabulary (*)()> outside_of_scopes{nullptr};

bool is_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Whether the `size` characters at `at` are words, not a part of a name, a path, or something in quotes.
bool stands_alone(std::string_view text, std::size_t at, std::size_t size) {
  constexpr std::string_view kBeforeNames = "/'\"";
  const std::size_t end = at + size;
  const bool begins =
      at == 0 || !is_of_name(text[at]) || (!is_of_name(text[at - 1]) && kBeforeNames.find(text[at - 1]) == text.npos);
  const bool ends = end == text.size() || !is_of_name(text[end - 1]) || !is_of_name(text[end]);
  return begins && ends;
}

}  // namespace

std::string in_words(Vocabulary words, std::string_view text) {
  for (const auto& [from, to] : words) {
    if (from.starts_with('=') && from.substr(1) == text) return std::string(to);
  }
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const auto found = std::find_if(words.begin(), words.end(), [&](const auto& pair) {
      return text.substr(at).starts_with(pair.first) && stands_alone(text, at, pair.first.size());
    });
    const bool is_found = found != words.end();
    result += is_found ? found->second : text.substr(at, 1);
    at += is_found ? found->first.size() : 1;
  }
  return result;
}

Vocabulary vocabulary_here() {
  if (is_in_scope) return words_of_scope;
  auto* const words = outside_of_scopes.load();
  return words != nullptr ? words() : Vocabulary();
}

std::string in_words_here(std::string text) {
  const Vocabulary words = vocabulary_here();
  return words.empty() ? text : in_words(words, text);
}

VocabularyScope::VocabularyScope(Vocabulary words)
    : outer_(std::exchange(words_of_scope, words)), is_outermost_(!std::exchange(is_in_scope, true)) {}

VocabularyScope::~VocabularyScope() {
  words_of_scope = outer_;
  is_in_scope = !is_outermost_;
}

void set_vocabulary_outside_of_scopes(Vocabulary (*words)()) { outside_of_scopes = words; }

}  // namespace lockstep
