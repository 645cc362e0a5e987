#!/bin/sh
# Tests scripts/check_options_page, scripts/check_figures, scripts/check_docs_paths and scripts/errors_page on a copy of the tree: they
# pass, and fail when one thing is wrong.
#
#   tests/scripts/check_pages.sh
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$root"
tar --exclude=./build --exclude='./.?*' -cf - . | tar -xf - -C "$tree"
failed=0

# try NAME FILE SED SCRIPT WANTED: the script passes on the copy, and with the file changed it fails and prints WANTED.
try() {
  cp "$tree/$2" "$tree/kept"
  sed -i "$3" "$tree/$2"
  if cmp -s "$tree/$2" "$tree/kept"; then
    echo "$1: the change does not apply to $2"
    failed=1
    return
  fi
  status=0
  # shellcheck disable=SC2086
  said=$("$root"/scripts/$4 "$tree" 2>&1) || status=$?
  mv "$tree/kept" "$tree/$2"
  case $said in *"$5"*) [ "$status" -ne 0 ] && return ;; esac
  printf '%s: exit status %d, expected "%s" in:\n%s\n' "$1" "$status" "$5" "$said"
  failed=1
}

for script in check_options_page check_figures check_docs_paths "errors_page --check"; do
  # shellcheck disable=SC2086
  if ! said=$("$root"/scripts/$script "$tree" 2>&1); then
    printf 'scripts/%s fails on the tree as it is:\n%s\n' "$script" "$said"
    failed=1
  fi
done

fit=lockstep/train/model.h
try "a new field" $fit 's/^  int validation_every = 1;/  int validation_often = 1;\n&/' check_options_page \
  'FitOptions.validation_often: no row'
try "a changed default" $fit 's/^  int validation_every = 1;/  int validation_every = 2;/' check_options_page \
  'FitOptions.validation_every: the default is 2, the page has `1`'
try "a field that is gone" docs/options.md 's/^| `.validation_every`/| `.validation_often` | `1` | |\n&/' check_options_page \
  'FitOptions has no field .validation_often'
try "a new struct" lockstep/nn/loss.h 's/^struct AverageLossOptions {/struct OtherOptions {\n  int x = 1;\n};\n&/' check_options_page \
  'OtherOptions: no section'
try "a new variable" lockstep/base/logging.cpp 's/"LOCKSTEP_LOG"/"LOCKSTEP_LOG_LEVEL"/' check_options_page \
  'LOCKSTEP_LOG_LEVEL: no row'
try "a new CMake option" CMakeLists.txt 's/^option(LOCKSTEP_CUDA /option(LOCKSTEP_ROCM "" OFF)\n&/' check_options_page \
  'LOCKSTEP_ROCM: no row'

try "a setting with another name" lockstep/nn/mirrored_optimizer.h 's/ set_digest(/ set_comparison(/' check_options_page \
  'set_comparison: no row'

try "another figure" README.md 's/| 1.86 |/| 1.87 |/' check_figures 'docs/performance.md has no row with these figures'
try "a label of another row" README.md 's/| eight layers of 2048 x 2048 |/| three linear layers |/' check_figures \
  'docs/performance.md has no row with these figures'

try "a changed explanation" lockstep/base/error_explain.cpp 's/Replicas meet in every/Replicas wait in every/' "errors_page --check" \
  'docs/errors.md is not current'
try "an error without an explanation" lockstep/base/error.h 's/^inline constexpr int kTimeout = 101;/inline constexpr int kOther = 199;\n&/' \
  "errors_page --check" 'kOther has no explanation'

try "a file that is gone" docs/README.md 's/(getting_started.md)/(beginning.md)/' check_docs_paths 'beginning.md does not exist'
try "a section that is gone" docs/porting.md 's/(performance.md#whole-programs)/(performance.md#all-programs)/' check_docs_paths \
  'performance.md#all-programs does not exist'
exit $failed
