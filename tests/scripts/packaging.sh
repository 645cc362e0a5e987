#!/bin/sh
# Tests the recipes of packaging/: their versions are the library's, and Conan can read and export its recipe.
#
#   tests/scripts/packaging.sh       the part with Conan only if there is one
set -eu
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^project(Lockstep VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
failed=0

expect() {
  [ "$2" = "$version" ] && return
  printf '%s has version "%s", the library "%s"\n' "$1" "$2" "$version"
  failed=1
}

expect vcpkg.json "$(python3 -c 'import json; print(json.load(open("packaging/vcpkg/lockstep/vcpkg.json"))["version"])')"
expect packaging/README.md "$(sed -n 's/.*`lockstep\/\([0-9.]*\)`.*/\1/p' packaging/README.md)"
if command -v conan >/dev/null && conan --version | grep -q ' 2\.'; then
  CONAN_HOME=$(mktemp -d)
  export CONAN_HOME
  trap 'rm -rf "$CONAN_HOME"' EXIT
  expect conanfile.py "$(conan export packaging/conan --format=json 2>/dev/null | sed -n 's/.*"lockstep\/\([0-9.]*\)#.*/\1/p')"
  conan inspect packaging/conan >/dev/null 2>&1 || { echo "conan cannot inspect packaging/conan"; failed=1; }
fi
exit $failed
