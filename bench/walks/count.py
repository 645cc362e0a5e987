#!/usr/bin/env python3
"""Counts the functions of Lockstep's own that a walk enters in every step, from what callgrind saw: see scripts/walks."""

import argparse
import collections
import fnmatch
import pathlib
import re
import subprocess
import sys
import tempfile

WALKS = {
    "gradient": "a gradient on CPUs, two replicas: backward, meeting, update by SGD",
    "adam": "the same, updated by Adam",
    "run": "`strategy.run` of a function that does nothing",
    "row": "a batch of `range`, `map`, `batch`, `distribute`",
}
KINDS = ("carrying", "meeting", "mistakes")

Function = collections.namedtuple("Function", "file line name")
Rule = collections.namedtuple("Rule", "kind file name")


# Names


# Brackets that belong to the name of an operator, while the others are taken out.
HIDDEN = str.maketrans("<>()", "\1\2\3\4")
SHOWN = str.maketrans("\1\2\3\4", "<>()")


def without_groups(name):
    """Without template arguments and parameters."""
    name = re.sub(r"operator(\(\)|<=>|<<|>>|->|<=|>=|<|>)(?=[ <(])", lambda found: found.group().translate(HIDDEN), name)
    depth = 0
    kept = []
    for character in name:
        if character in "<([":
            depth += 1
        elif character in ">)]":
            depth -= 1
        elif depth == 0:
            kept.append(character)
    return "".join(kept)


def short_name(name):
    """Poison::set of `void lockstep::detail::Poison::set<T>(T&&) const`. Nameless namespaces and `detail` say nothing."""
    name = without_groups(name.replace("(anonymous namespace)::", ""))
    name = re.sub(r" const(?=::|$)", "", name.strip())
    conversion = name.find("operator ")
    start = name.rfind(" ", 0, conversion if conversion >= 0 else len(name)) + 1
    return re.sub(r"\b(lockstep|detail)::", "", name[start:]).translate(SHOWN)


def is_lambda(name):
    return any("{lambda" in part for part in short_name(name).split("::")[-2:])


# Callgrind's file


def read_calls(path, root):
    """Calls of every function of Lockstep's own, and the functions of its own that it calls."""
    calls = collections.Counter()
    callees = collections.defaultdict(set)
    begins = {}  # the line of a function, by its file and name
    worked = set()  # others only stand around what was seen
    file = function = called_file = called = None
    is_cost_of_call = False
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            key, _, value = line.rstrip("\n").partition("=")
            if key == "fl":
                file = value
            elif key == "fn":
                function = (file, value)
            elif key in ("cfi", "cfl"):
                called_file = value
            elif key == "cfn":
                called = (called_file or file, value)
                called_file = None
            elif key == "calls":
                count, begin = value.split()[:2]
                begins.setdefault(called, int(begin))
                calls[called] += int(count)
                callees[function].add(called)
                is_cost_of_call = True
            elif line[0].isdigit():
                if not is_cost_of_call:
                    worked.add(function)
                is_cost_of_call = False

    def own(key):
        if not key[0].startswith(f"{root}/lockstep/"):
            return None
        return Function(key[0][len(str(root)) + 1 :], begins.get(key, 0), key[1])

    own_calls = {own(key): count for key, count in calls.items() if key in worked and own(key)}
    own_callees = {own(key): {own(c) for c in called} - {None} for key, called in callees.items() if own(key)}
    return own_calls, own_callees


# What counts


def read_rules(path):
    """Lines `kind file name`, with wildcards; what comes first holds."""
    rules = []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        fields = line.split("#")[0].split()
        if not fields:
            continue
        if len(fields) != 3 or fields[0] not in ("left_out", *KINDS):
            sys.exit(f"error: {path}: not 'kind file name': {line}")
        rules.append(Rule(*fields))
    return rules


def kind_of(function, rules):
    name = short_name(function.name)
    for rule in rules:
        if not fnmatch.fnmatchcase(function.file, rule.file):
            continue
        if fnmatch.fnmatchcase(name, rule.name) or fnmatch.fnmatchcase(name.split("::")[-1], rule.name):
            return rule.kind
    return "carrying"


class Sources:
    def __init__(self, root):
        self.root = root
        self.texts = {}

    def line(self, function):
        if function.file not in self.texts:
            text = (self.root / function.file).read_text(encoding="utf-8")
            self.texts[function.file] = [""] + text.splitlines()
        return self.texts[function.file][function.line].split("//")[0].strip()


def is_written(function, sources):
    """Not by the compiler: constructors and destructors that nobody has written have the line of their class."""
    line = sources.line(function)
    return not (re.match(r"(template.*> *)?(struct|class|using)\b", line) or "= default" in line)


def is_accessor(function, callees, sources):
    """Written in one line, and calls nothing of Lockstep's own but others of this kind."""
    if not is_written(function, sources):
        return True
    line = sources.line(function)
    is_one_line = "{" in line and line.rstrip(";").endswith("}")
    others = callees.get(function, set()) - {function}
    return is_one_line and all(is_accessor(other, callees, sources) for other in others)


def count(path, steps, root, rules):
    """By kind, the functions entered at least once in each step. Instances of a template are one function."""
    calls, callees = read_calls(path, root)
    sources = Sources(root)
    entered = collections.Counter()
    names = {}
    for function, times in calls.items():
        if is_lambda(function.name) or is_accessor(function, callees, sources):
            continue
        place = (function.file, function.line)
        names.setdefault(place, function)
        entered[place] += times
    found = {kind: [] for kind in KINDS}
    for place in sorted(entered):
        kind = kind_of(names[place], rules)
        if entered[place] >= steps and kind != "left_out":
            found[kind].append(names[place])
    return found


# Running and printing


def take(program, walk, folder):
    """Runs the walk under callgrind; its file, and the steps that were seen."""
    path = f"{folder}/{walk}.out"
    collect = "no" if walk in ("gradient", "adam") else "yes"  # the program says what counts of a gradient
    command = ["valgrind", "--tool=callgrind", "--quiet", "--instr-atstart=no", f"--collect-atstart={collect}",
               "--compress-strings=no", "--compress-pos=no", f"--callgrind-out-file={path}", str(program), walk]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return path, int(done.stdout)


def files_of(functions):
    return len({function.file for function in functions})


def print_table(found):
    print(f"| walk | {' | '.join(KINDS)} | all | files | carrying and meeting | files |")
    print(f"|---|{'---|' * 7}")
    for walk, kinds in found.items():
        trunk = kinds["carrying"] + kinds["meeting"]
        everything = trunk + kinds["mistakes"]
        cells = [len(kinds[kind]) for kind in KINDS] + [len(everything), files_of(everything), len(trunk), files_of(trunk)]
        print(f"| {WALKS[walk]} | {' | '.join(map(str, cells))} |")


def print_list(kinds):
    for kind in KINDS:
        print(f"{kind}: {len(kinds[kind])}")
        file = None
        for function in kinds[kind]:
            if function.file != file:
                file = function.file
                print(f"  {file}")
            print(f"    {function.line}: {short_name(function.name)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--root", type=pathlib.Path, required=True, help="the checkout that the program was built of")
    parser.add_argument("--list", choices=WALKS, metavar="WALK", help="print the functions of this walk, by file")
    options = parser.parse_args()
    rules = read_rules(pathlib.Path(__file__).with_name("kinds.txt"))
    walks = [options.list] if options.list else list(WALKS)
    with tempfile.TemporaryDirectory() as folder:
        found = {walk: count(*take(options.program, walk, folder), options.root.resolve(), rules) for walk in walks}
    print_list(found[options.list]) if options.list else print_table(found)


if __name__ == "__main__":
    main()
