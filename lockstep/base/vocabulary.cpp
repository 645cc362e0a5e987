#include "lockstep/base/vocabulary.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <iterator>

namespace lockstep {
namespace {

thread_local Vocabulary words_of_scope;
thread_local bool is_in_scope = false;
std::atomic<Vocabulary (*)()> outside_of_scopes{nullptr};

constexpr char kVerbatim = '\x02', kVerbatimEnd = '\x03';

bool is_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool joins_names(char c) { return is_of_name(c) || c == '/' || c == '-' || c == '.'; }

/// Whether the `size` characters at `at` are words rather than a part of a name or path. A full stop may end a
/// sentence.
bool stands_alone(std::string_view text, std::size_t at, std::size_t size) {
  const auto after = text.substr(at + size);
  const bool begins = at == 0 || !is_of_name(text[at]) || !joins_names(text[at - 1]);
  if (!begins || after.empty() || !is_of_name(text[at + size - 1])) return begins;
  return !joins_names(after[0]) || (after[0] == '.' && (after.size() == 1 || !is_of_name(after[1])));
}

/// How many characters from `at` on are kept: 'a name', "the text of a file", or text marked as verbatim.
std::size_t quoted_at(std::string_view text, std::size_t at) {
  const char begin = text[at];
  if (begin == kVerbatim) return std::min(text.find(kVerbatimEnd, at), text.size() - 1) - at + 1;
  if ((begin != '\'' && begin != '"') || (at > 0 && is_of_name(text[at - 1]))) return 0;
  const std::size_t end = text.find(begin, at + 1);
  return end == text.npos ? 0 : end - at + 1;
}

}  // namespace

std::string in_words(Vocabulary words, std::string_view text) {
  for (const auto& [from, to] : words) {
    if (from.starts_with('=') && from.substr(1) == text) return std::string(to);
  }
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    if (const std::size_t quoted = quoted_at(text, at); quoted > 0) {
      std::ranges::copy_if(text.substr(at, quoted), std::back_inserter(result),
                           [](char c) { return c != kVerbatim && c != kVerbatimEnd; });
      at += quoted;
      continue;
    }
    const auto found = std::find_if(words.begin(), words.end(), [&](const auto& pair) {
      return text.substr(at).starts_with(pair.first) && stands_alone(text, at, pair.first.size());
    });
    const bool is_found = found != words.end();
    result += is_found ? found->second : text.substr(at, 1);
    at += is_found ? found->first.size() : 1;
  }
  return result;
}

std::string verbatim(std::string_view text) {
  std::string marked(text);
  std::erase(marked, kVerbatimEnd);
  return kVerbatim + marked + kVerbatimEnd;
}

Vocabulary vocabulary_here() {
  if (is_in_scope) return words_of_scope;
  auto* const words = outside_of_scopes.load();
  return words != nullptr ? words() : Vocabulary();
}

std::string in_words_here(std::string text) {
  const Vocabulary words = vocabulary_here();
  return words.empty() && text.find(kVerbatim) == text.npos ? text : in_words(words, text);
}

VocabularyScope::VocabularyScope(Vocabulary words)
    : outer_(std::exchange(words_of_scope, words)), is_outermost_(!std::exchange(is_in_scope, true)) {}

VocabularyScope::~VocabularyScope() {
  words_of_scope = outer_;
  is_in_scope = !is_outermost_;
}

void set_vocabulary_outside_of_scopes(Vocabulary (*words)()) { outside_of_scopes = words; }

}  // namespace lockstep
