#!/bin/sh
# Tests scripts/check_words on small trees with and without mistakes.
#
#   tests/scripts/check_words.sh
set -eu
check=$(cd "$(dirname "$0")/../.." && pwd)/scripts/check_words
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/lockstep/contrib" "$tree/lockstep/strategy"
failed=0

# try NAME ENTRY SOURCE WANTED: a table with this entry and a source with this text. The checker passes in silence if WANTED is
# empty; otherwise it fails and prints WANTED.
try() {
  printf 'constexpr Words kTowerWords[] = {\n    %s\n};\n' "$2" >"$tree/lockstep/contrib/words.cpp"
  printf '%s\n' "$3" >"$tree/lockstep/strategy/source.cpp"
  status=0
  said=$("$check" "$tree" 2>&1) || status=$?
  if [ -z "$4" ]; then
    [ "$status" -eq 0 ] && [ -z "$said" ] && return
  else
    case $said in *"$4"*) [ "$status" -ne 0 ] && return ;; esac
  fi
  printf '%s: exit status %d, expected "%s" in:\n%s\n' "$1" "$status" "$4" "$said"
  failed=1
}

entry='{"call run from", "call call_for_each_tower from"}'
lost='words.cpp:2: no source says "call run from"'
try "a phrase" "$entry" 'say("please call run from one thread");' ""
try "a sentence that was changed" "$entry" 'say("please start run from one thread");' "$lost"
try "a string in two parts" "$entry" 'say("please call "
      "run from one thread");' ""
try "two strings" "$entry" 'say("please call ", "run from one thread");' "$lost"
try "a comment" "$entry" '// please call run from one thread' "$lost"
try "a comment with a quote" "$entry" '// says "
say("call run from here");' ""
try "quotes" '{"the \"x\" of", "y"}' 'say("in the \"x\" of it");' ""
try "missing quotes" '{"the \"x\" of", "y"}' 'say("the x of");' 'no source says "the "x" of"'
try "a whole text" '{"=run", "call_for_each_tower"}' 'where("run");' ""
try "no whole text" '{"=run", "call_for_each_tower"}' 'where("run now");' 'no source says "=run"'
try "parts" '{"strategy.run twice", "x"},  // parts: strategy.|run| twice' 'say("call strategy.", name, " twice"); f("run");' ""
try "a missing part" '{"strategy.run twice", "x"},  // parts: strategy.|run| twice' 'say("call strategy.", name, " twice");' \
  'no source says "strategy.run twice"'
try "an empty table" '' 'say("call run from");' "no phrases found"

printf 'constexpr Word kWordsOfV9[] = {\n    %s};\n' "$entry" >"$tree/lockstep/contrib/words.cpp"
printf 'expect("call run from");\n' >"$tree/lockstep/strategy/source_test.cpp"
: >"$tree/lockstep/strategy/source.cpp"
if "$check" "$tree" >/dev/null 2>&1; then
  echo "a test's expectation was taken for a sentence of the library"
  failed=1
fi
exit $failed
