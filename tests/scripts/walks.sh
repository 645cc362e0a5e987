#!/bin/sh
# Tests bench/walks/count.py, which counts for scripts/walks, on a small tree and on what callgrind could have seen of it.
#
#   tests/scripts/walks.sh
set -eu
count=$(cd "$(dirname "$0")/../.." && pwd)/bench/walks
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/lockstep/nn"
cat >"$tree/lockstep/nn/a.cpp" <<'CODE'
struct Made {
  int size() const { return size_; }
  int asked() const { return twice(size()); }
};

void carry(int steps) {
  require_one(steps);
}
void require_one(int value) {
  if (value != 1) throw value;
}
template <class T>
T twice(T value) {
  return value + value;
}
void text() {
}
void meet() {
}
void around() {
}
CODE

# Ten steps, in which something was called from outside, and that called the rest. `around` did nothing itself.
cat >"$tree/seen" <<SEEN
fl=/elsewhere/main.cpp
fn=main
1 5
cfi=$tree/lockstep/nn/a.cpp
cfn=lockstep::(anonymous namespace)::carry(int)
calls=10 6
1 50
cfi=$tree/lockstep/nn/a.cpp
cfn=lockstep::meet()
calls=9 18
1 50
cfi=$tree/lockstep/nn/a.cpp
cfn=lockstep::around()
calls=10 20
1 500

fl=$tree/lockstep/nn/a.cpp
fn=lockstep::(anonymous namespace)::carry(int)
7 5
cfn=lockstep::detail::require_one(int)
calls=10 9
7 10
cfn=int lockstep::twice<int, lockstep::carry(int)::{lambda()#1}>(int)
calls=5 13
7 10
cfn=float lockstep::twice<float>(float)
calls=5 13
7 10
cfn=lockstep::Made::size() const
calls=20 2
7 10
cfn=lockstep::Made::Made()
calls=20 1
7 10
cfn=lockstep::Made::asked() const
calls=20 3
7 10
cfn=lockstep::carry(int)::{lambda(int)#1}::operator()(int) const
calls=20 7
7 10
cfn=lockstep::text()
calls=20 16
7 10
cfi=/elsewhere/vector
cfn=std::vector<lockstep::Made>::size() const
calls=20 3
7 10

fn=lockstep::Made::asked() const
3 10
cfn=float lockstep::twice<float>(float)
calls=20 13
3 10

fn=lockstep::detail::require_one(int)
10 5

fn=int lockstep::twice<int, lockstep::carry(int)::{lambda()#1}>(int)
14 5

fn=float lockstep::twice<float>(float)
14 5

fn=lockstep::Made::size() const
2 5

fn=lockstep::Made::Made()
1 5

fn=lockstep::carry(int)::{lambda(int)#1}::operator()(int) const
7 5

fn=lockstep::text()
17 5

fn=lockstep::meet()
19 5

fn=lockstep::around()
cfn=lockstep::text()
calls=10 16
21 500
SEEN

cat >"$tree/kinds" <<'KINDS'
# comments do not count
left_out */nn/*.cpp text
mistakes * require_*  # the rest of a line neither
meeting * meet
KINDS

found=$(PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$count python3 -c '
import count, pathlib, sys
found = count.count(sys.argv[1] + "/seen", 10, pathlib.Path(sys.argv[1]), count.read_rules(sys.argv[1] + "/kinds"))
for kind, functions in found.items():
    for function in functions:
        print(kind, function.line, count.short_name(function.name))
' "$tree")
wanted='carrying 3 Made::asked
carrying 6 carry
carrying 13 twice
mistakes 9 require_one'
[ "$found" = "$wanted" ] || {
  printf 'expected:\n%s\ngot:\n%s\n' "$wanted" "$found"
  exit 1
}
