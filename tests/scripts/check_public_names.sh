#!/bin/sh
# Tests docs/site/public_names.py, behind scripts/check_public_names, on a small tree with and without mistakes.
#
#   tests/scripts/check_public_names.sh       exit status 77 without doxygen
set -eu
command -v doxygen >/dev/null || exit 77
root=$(cd "$(dirname "$0")/../.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/lockstep" "$tree/cmake" "$tree/docs/contributing"
cp "$root/cmake/LockstepPublicHeaders.cmake" "$tree/cmake/"
failed=0

# try NAME BODY WANTED: a header with BODY in namespace lockstep, whose names are listed. What the check prints holds WANTED, and it
# fails; with an empty WANTED it passes.
try() {
  printf '#pragma once\n\nnamespace lockstep {\n\n%s\n\n}  // namespace lockstep\n' "$2" >"$tree/lockstep/lockstep.h"
  python3 "$root/docs/site/public_names.py" "$tree" --update >/dev/null || true
  expect "$1" "$3"
}

expect() {
  status=0
  said=$(python3 "$root/docs/site/public_names.py" "$tree" 2>&1) || status=$?
  case $2 in
    '') [ "$status" -eq 0 ] && return ;;
    *) case $said in *"$2"*) [ "$status" -ne 0 ] && return ;; esac ;;
  esac
  printf '%s: exit status %d, expected "%s" in:\n%s\n' "$1" "$status" "$2" "$said"
  failed=1
}

try "documented" '/// Adds.
int add(int a, int b);
int add(int a);

/// A pair.
struct Pair {
  int first = 0;  ///< the first
};' ""
try "a bare function" 'int add(int a, int b);' "lockstep::add has no /// comment"
try "a bare class" 'class Adder {};' "lockstep::Adder has no /// comment"
try "a bare field" '/// A pair.
struct Pair {
  int first = 0;
};' "lockstep::Pair::first has no /// comment"
try "a field that its class is about" '/// A pair, of which `first` counts.
struct Pair {
  int first = 0;
};' ""
try "a bare method behind a documented one" '/// Adds.
class Adder {
 public:
  /// Adds one.
  int one();

  int two();
};' "lockstep::Adder::two has no /// comment"
try "methods with one comment" '/// Adds.
class Adder {
 public:
  /// Adds one, or two.
  int one();
  int two();
};' ""
try "a comment that an empty line separates" '/// Adds.

int add(int a);' "lockstep::add has no /// comment"
try "the values of an enumeration" '/// Colours.
enum class Colour { Red, Green };' ""
try "what is not for users" 'namespace detail {
int add(int a);
}
/// Adds.
class Adder {
 private:
  int one();
};' ""

echo '/// More.
#define MORE' >>"$tree/lockstep/lockstep.h"
expect "an unchanged list" ""
sed -i 's/class Adder/class Summer/' "$tree/lockstep/lockstep.h"
expect "a new name" "new public name: lockstep::Summer class"
expect "a name that is gone" "no longer public: lockstep::Adder class"
exit $failed
