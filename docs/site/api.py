"""The public names of Lockstep, read from its installed headers with Doxygen.

Doxygen finds the declarations. It gets copies of the headers in which each `///` comment is marked as verbatim, so that the
comments arrive as the Markdown they are written in.
"""

import dataclasses
import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree as xml

SPACES = ("lockstep", "lockstep::data", "lockstep::nn", "lockstep::train", "lockstep::compat", "lockstep::contrib")
# Names that the standard library's algorithms and loops look for. They mean what they mean there.
STANDARD = {"value_type", "iterator_category", "difference_type", "pointer", "reference", "begin", "end", "size", "empty"}

ABOVE = re.compile(r"^(\s*)///(?![</]) ?(.*)$")
BEHIND = re.compile(r"^(.*?)///< ?(.*)$")


@dataclasses.dataclass
class Name:
    scope: str
    last: str
    kind: str  # class, struct, enum, enumvalue, function, variable, typedef
    doc: str
    file: str
    line: int
    element: object  # Doxygen's, for the signature
    members: list = dataclasses.field(default_factory=list)
    covered_by: "Name | None" = None  # the function whose comment is about this one, too

    @property
    def qualified(self):
        return f"{self.scope}::{self.last}"

    @property
    def is_type(self):
        return self.kind in ("class", "struct", "union", "enum")

    @property
    def is_special(self):
        """Constructors, destructors and operators: the class's comment is about them."""
        return self.last.startswith(("operator", "~")) or self.last == self.scope.rpartition("::")[2]


def public_headers(root):
    """Installed headers, by the list that installs them."""
    script = (
        "cmake_minimum_required(VERSION 3.25)\ninclude(cmake/LockstepPublicHeaders.cmake)\n"
        "lockstep_public_headers(headers .)\n"
        "foreach(header ${headers})\nmessage(NOTICE ${header})\nendforeach()\n"
        "message(NOTICE entry ${LOCKSTEP_ENTRY_HEADERS})\n"
    )
    work = root / "build/site"
    work.mkdir(parents=True, exist_ok=True)
    (work / "headers.cmake").write_text(script)
    result = subprocess.run(["cmake", "-P", "build/site/headers.cmake"], cwd=root, text=True, capture_output=True, check=True)
    lines = result.stderr.split("\n")
    entries = [line[len("entry") :] for line in lines if line.startswith("entrylockstep")]
    headers = [line for line in lines if line.endswith(".h") and not line.startswith("entry")]
    entry = re.findall(r"lockstep/.*?\.h(?=lockstep/|$)", entries[0])
    return headers, entry


def mark_comments(text):
    """Marks each comment as verbatim and each of its lines with '|'. A comment before an empty line belongs to no declaration."""
    lines = text.split("\n")
    marked = []
    for i, line in enumerate(lines):
        above = ABOVE.match(line)
        behind = BEHIND.match(line)
        if above:
            follows = i > 0 and ABOVE.match(lines[i - 1])
            end = i
            while ABOVE.match(lines[end]):
                end += 1
            if lines[end].strip() == "":
                marked.append("//")
                continue
            begin, finish = ("" if follows else "@verbatim "), (" @endverbatim" if end == i + 1 else "")
            marked.append(f"{above[1]}/// {begin}|{above[2]}{finish}")
        elif behind:
            marked.append(f"{behind[1]}///< @verbatim |{behind[2]} @endverbatim")
        else:
            marked.append(line)
    return "\n".join(marked)


def comment_of(element):
    lines = []
    for part in ("briefdescription", "detaileddescription"):
        found = element.find(part)
        for verbatim in [] if found is None else found.iter("verbatim"):
            if lines:
                lines.append("")
            lines += [line.partition("|")[2].rstrip() for line in (verbatim.text or "").split("\n") if "|" in line]
    return "\n".join(lines).strip("\n")


def is_hidden(qualified):
    parts = qualified.split("::")
    return parts[0] != "lockstep" or "detail" in parts or "<" in qualified


def names_in(compound):
    """The names that a Doxygen compound declares, each a Name."""
    scope = compound.find("compoundname").text
    for member in compound.iter("memberdef"):
        last = member.find("name").text
        arguments = member.findtext("argsstring") or ""
        protected = member.get("prot") != "public" and member.get("virt", "non-virtual") == "non-virtual"
        # `using Base::Base` is the base's function under its own name.
        made_by = re.search(rf"\b{re.escape(last)}\s*(<.*>)?::{re.escape(last)}$", member.findtext("definition") or "")
        inherited = member.get("kind") == "function" and made_by and not scope.endswith(f"::{last}")
        if protected or member.get("kind") == "friend" or "delete" in arguments.rpartition(")")[2] or inherited:
            continue
        place = member.find("location")
        name = Name(scope, last, member.get("kind"), comment_of(member), place.get("file"), int(place.get("line")), member)
        for value in member.findall("enumvalue"):
            child = Name(name.qualified, value.findtext("name"), "enumvalue", comment_of(value), name.file, name.line, value)
            name.members.append(child)
        if not is_hidden(name.qualified):
            yield name


def share_comments(names, lines_of):
    """A comment above a function is also about the functions that follow it without an empty line, and about its overloads."""
    functions = sorted((n for n in names if n.kind == "function"), key=lambda n: (n.file, n.line))
    documented = {}
    for name in functions:
        if name.doc:
            documented.setdefault(name.last, name)
    fields = [n for n in names if n.kind == "variable"]
    for name in fields:
        name.doc = name.doc or next((n.doc for n in fields if n.doc and (n.file, n.line) == (name.file, name.line)), "")
    for name in functions:
        if name.doc:
            continue
        lines = lines_of(name.file)
        above = name.line - 1
        while (
            above > 0
            and lines[above - 1].strip()
            and not ABOVE.match(lines[above - 1])
            and not re.match(r"^ *};", lines[above - 1])
        ):
            above -= 1
        leader = None
        if above > 0 and ABOVE.match(lines[above - 1]):
            leader = next((n for n in functions if n.file == name.file and n.line > above and n.doc), None)
        if leader is None or leader.line > name.line:
            leader = documented.get(name.last)
        name.covered_by = leader


def read(root):
    """Parses the public headers. Returns the top-level Names by file order, and the headers."""
    headers, entry = public_headers(root)
    work = root / "build/site/doxygen"
    shutil.rmtree(work, ignore_errors=True)
    for header in headers:
        copy = work / "include" / header
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(mark_comments((root / header).read_text()))
    settings = (pathlib.Path(__file__).parent / "Doxyfile").read_text()
    settings += (
        f"INPUT={work}/include\nSTRIP_FROM_PATH={work}/include\nSTRIP_FROM_INC_PATH={work}/include\nOUTPUT_DIRECTORY={work}\n"
    )
    subprocess.run(["doxygen", "-"], input=settings, text=True, check=True, stdout=subprocess.DEVNULL)

    types, members = {}, []
    for path in sorted((work / "xml").glob("*.xml")):
        for compound in xml.parse(path).getroot().findall("compounddef"):
            kind, qualified = compound.get("kind"), compound.findtext("compoundname")
            if kind not in ("class", "struct", "union", "namespace") or is_hidden(qualified) or compound.get("prot") == "private":
                continue
            if kind != "namespace":
                scope, _, last = qualified.rpartition("::")
                place = compound.find("location")
                types[qualified] = Name(
                    scope, last, kind, comment_of(compound), place.get("file"), int(place.get("line")), compound
                )
            members.append(list(names_in(compound)))

    cache = {}

    def lines_of(file):
        if file not in cache:
            cache[file] = (root / file).read_text().split("\n")
        return cache[file]

    top = []
    for group in members:
        share_comments(group, lines_of)
        for name in group:
            (types[name.scope].members if name.scope in types else top).append(name)
    for name in types.values():
        (types[name.scope].members if name.scope in types else top).append(name)
    for name in types.values():
        name.members.sort(key=lambda n: n.line)
    known = set(headers)
    guides = {n.qualified for n in types.values()}
    top = [n for n in top if n.kind != "function" or n.qualified not in guides]
    return sorted((n for n in top if n.file in known), key=lambda n: (n.file, n.line)), headers, entry


def walk(names):
    for name in names:
        yield name
        yield from walk(name.members)


def is_documented(name, parent=None):
    """Whether a comment is about the name: its own, one shared with its neighbours, or its class's, which may name a member in
    backticks. The comment of an enumeration, or of a class whose constants are of its own type, is about its values."""
    if name.doc or name.covered_by or name.is_special or (name.last in STANDARD and name.kind != "variable"):
        return True
    if parent and f"`{name.last}`" in parent.doc:
        return True
    constant = name.kind == "variable" and name.element.get("static") == "yes" and parent is not None
    if name.kind == "enumvalue" or (constant and "".join(name.element.find("type").itertext()).endswith(parent.last)):
        return bool(parent and parent.doc)
    return name.kind == "function" and "override" in (name.element.findtext("argsstring") or "").rpartition(")")[2]


def undocumented(names, parent=None):
    for name in names:
        if not is_documented(name, parent):
            yield name
        yield from undocumented(name.members, name)
