#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/export.h"

// An API over the main one has its own names for things. What the main one throws through it should use them.
namespace lockstep {

/// Texts, each with what to write in its place; where two begin alike, the longer one first. One that begins with '='
/// stands for a whole part of an error: "=run" is the `where` of run.
using ErrorWords = std::span<const std::pair<std::string_view, std::string_view>>;

LOCKSTEP_EXPORT std::string in_words(ErrorWords words, std::string_view text);

/// Throws the same error in these words.
[[noreturn]] LOCKSTEP_EXPORT void throw_in_words(ErrorWords words, const Error& error);

/// Calls `f()`. Lockstep's errors leave it in these words.
template <class F>
decltype(auto) with_error_words(ErrorWords words, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& error) {
    throw_in_words(words, error);
  }
}

}  // namespace lockstep
