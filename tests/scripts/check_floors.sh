#!/bin/sh
# Tests scripts/check_floors on a small tree with and without mistakes.
#
#   tests/scripts/check_floors.sh
set -eu
check=$(cd "$(dirname "$0")/../.." && pwd)/scripts/check_floors
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/lockstep/base" "$tree/lockstep/strategy/detail" "$tree/lockstep/nn"
echo 'lockstep_plain_sources(plain.cpp)' >"$tree/lockstep/strategy/CMakeLists.txt"
failed=0

# expect NAME WANTED: what the checker prints holds WANTED, and it fails; with an empty WANTED it passes in silence.
expect() {
  status=0
  said=$("$check" "$tree" 2>&1) || status=$?
  case $2 in
    '') [ "$status" -eq 0 ] && [ -z "$said" ] && return ;;
    *) case $said in *"$2"*) [ "$status" -ne 0 ] && return ;; esac ;;
  esac
  printf '%s: exit status %d, expected "%s" in:\n%s\n' "$1" "$status" "$2" "$said"
  failed=1
}

# try NAME FILE LINE WANTED: the tree with one more file of one line.
try() {
  printf '%s\n' "$3" >"$tree/$2"
  expect "$1" "$4"
  rm "$tree/$2"
}

expect "an empty tree" ""
try "a lower floor" lockstep/nn/a.cpp '#include "lockstep/strategy/strategy.h"' ""
try "a higher floor" lockstep/strategy/a.cpp '#include "lockstep/nn/loss.h"' "floor strategy may not include from floor nn"
try "a relative path" lockstep/nn/a.cpp '#include "../base/text.h"' "write includes from the root"
try "torch in base" lockstep/base/a.h '#include <ATen/ATen.h>' "floor base may not include torch"
try "torch in a plain source" lockstep/strategy/plain.cpp '#include <torch/torch.h>' "may not include torch"

for name in loss_scale has_losses GradScaler make_model Model optimizers_made is_tower towers; do
  try "$name" lockstep/strategy/a.h "int $name = 0;" "a.h:1: floor strategy may not know of $name"
done
try "a second name of a line" lockstep/strategy/detail/run.h 'int rows; int model;' "may not know of model"
for line in '// a loss' '/// of the model' 'say("a tower: \"", it);' 'int scalar_type, lossless, remodel;' 'f(/* loss */ 1);'; do
  try "$line" lockstep/strategy/a.cpp "$line" ""
done
try "the nn floor" lockstep/nn/a.cpp 'int loss_scale;' ""
try "a test" lockstep/strategy/run_test.cpp 'int loss;' ""
try "the forward declarations" lockstep/strategy/detail/forward.h 'class MirroredOptimizer;' ""
try "what strategy.h declares with them" lockstep/strategy/strategy.h 'MirroredOptimizer<Opt> make_optimizer();' ""
try "other names in strategy.h" lockstep/strategy/strategy.h 'bool has_made_models_;' "may not know of has_made_models_"
exit $failed
