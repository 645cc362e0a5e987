"""Compares the public names of the headers with docs/contributing/public_names.txt, and looks for undocumented ones.

public_names.py ROOT [--update]
"""

import pathlib
import sys

import api

HEAD = "# The public names of Lockstep. Written by `scripts/check_public_names --update`.\n"
KINDS = {"struct": "class", "union": "class"}


def listing(names):
    lines = set()
    for name in api.walk(names):
        if not name.is_special:
            lines.add(f"{name.qualified} {KINDS.get(name.kind, name.kind)}")
    return sorted(lines, key=lambda line: (line.lower(), line))


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    names, _, _ = api.read(root)
    path = root / "docs/contributing/public_names.txt"
    now = listing(names)
    if "--update" in sys.argv:
        path.write_text(HEAD + "\n".join(now) + "\n")
    listed = [line for line in path.read_text().splitlines() if not line.startswith("#")] if path.exists() else []
    for line in sorted(set(now) - set(listed)):
        print(f"docs/contributing/public_names.txt: new public name: {line}")
    for line in sorted(set(listed) - set(now)):
        print(f"docs/contributing/public_names.txt: no longer public: {line}")
    bare = list(api.undocumented(names))
    for name in bare:
        print(f"{name.file}:{name.line}: {name.qualified} has no /// comment")
    if now != listed:
        print("The public names changed: run scripts/check_public_names --update, and say in CHANGELOG.md what changed for users")
    if now != listed or bare:
        sys.exit(1)
    print(f"{len(now)} public names, all of them listed and documented")


main()
