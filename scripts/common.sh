# Sourced by the other scripts: paths, and how to run and report a step.
# shellcheck shell=sh

root=$(cd "$(dirname "$0")/.." && pwd)
torch_version=2.9.1
deps=${LOCKSTEP_DEPS_DIR:-$root/.deps}
torch_dir=${LOCKSTEP_TORCH_DIR:-$deps/libtorch-$torch_version/torch}

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# find_clang: the newest clang 16 or later that has its sanitizers, or $LOCKSTEP_CLANG; nothing if there is none. Sanitizer builds and
# fuzzing use it: it compiles them faster than g++, and both compilers get to see the code.
find_clang() {
  for candidate in ${LOCKSTEP_CLANG:-clang++-21 clang++-20 clang++-19 clang++-18 clang++-17 clang++-16 clang++}; do
    printf '#if __clang_major__ < 16\n#error\n#endif\nint main() {}\n' |
      "$candidate" -fsanitize=address,undefined -x c++ -o /dev/null - >/dev/null 2>&1 || continue
    command -v "$candidate"
    return
  done
}

# find_clang_tidy: the newest clang-tidy 16 or later; older ones cannot read std::source_location of g++ 12.
find_clang_tidy() {
  for candidate in clang-tidy-21 clang-tidy-20 clang-tidy-19 clang-tidy-18 clang-tidy-17 clang-tidy-16; do
    if have "$candidate"; then
      echo "$candidate"
      return
    fi
  done
}

# find_python MODULE...: the first Python that has these modules. Debian's modules belong to /usr/bin/python3, which need not come first.
find_python() {
  modules=$(printf ',%s' "$@")
  for candidate in python3 /usr/bin/python3; do
    if "$candidate" -c "import ${modules#,}" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

# phase NAME COMMAND...: runs the command and prints how long it took.
phase() {
  phase_name=$1
  shift
  phase_start=$(date +%s)
  phase_status=0
  "$@" || phase_status=$?
  phase_result='done'
  [ "$phase_status" -eq 0 ] || phase_result=FAILED
  printf -- '-- %s %s in %s s\n' "$phase_name" "$phase_result" "$(($(date +%s) - phase_start))"
  return "$phase_status"
}

# How many compilers run at once: one per core, but a file that includes torch takes up to 2 GB.
jobs() {
  cores=$(nproc)
  by_memory=$(awk '/^MemAvailable:/ { n = int($2 / 2000000); print (n < 1 ? 1 : n) }' /proc/meminfo)
  [ "${by_memory:-$cores}" -lt "$cores" ] && cores=$by_memory
  printf '%s\n' "$cores"
}

# configure PRESET [-D...]: what was switched on in a build directory stays on, so that no script throws away what another
# one has built; a fresh one has only what its script asks for.
configure() {
  preset=$1
  shift
  [ -f "$root/build/$preset/CMakeCache.txt" ] || set -- -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_BENCH=OFF "$@"
  (cd "$root" && cmake --preset "$preset" --log-level=WARNING --no-warn-unused-cli -DLOCKSTEP_TORCH_DIR="$torch_dir" "$@" >/dev/null)
}

# build PRESET TARGET: silent but for warnings and errors, with a status line on a terminal.
build() {
  quiet=--quiet
  [ -t 1 ] && quiet=
  NINJA_STATUS='[%f/%t %es] ' cmake --build "$root/build/$1" --target "$2" --parallel "$(jobs)" -- ${quiet:+"$quiet"}
}
