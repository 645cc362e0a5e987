"""Lays out the API reference: a page for each public header, with its names in the order of the header."""

import collections
import re

import api
import pages
import signatures

AREAS = {
    "strategy": "Strategies",
    "values": "Values of replicas",
    "data": "Data",
    "nn": "Models and optimizers",
    "train": "Training loop",
    "comm": "Many workers",
    "base": "Errors, devices, logging",
    "compat": "TensorFlow's names",
    "contrib": "TensorFlow 1.11",
}


def address_of(header):
    return "reference/" + header.removeprefix("lockstep/").removesuffix(".h") + ".html"


def anchor_of(name):
    """The name without its namespaces, which the page's other names share."""
    return re.sub(r"^lockstep::((data|nn|train|compat|contrib)::)?", "", name.qualified).replace("::", ".")


def entry_headers(root, headers, entries):
    """For each header, the one that a program is told to include to get it."""
    found = {}
    for entry in entries:
        open_ = [entry]
        while open_:
            header = open_.pop()
            if header in found or header not in headers:
                continue
            found[header] = entry
            open_ += re.findall(r'^#include "(lockstep/[^"]+)"', (root / header).read_text(), re.M)
    return found


class Index:
    """Finds the address of a name that a page mentions."""

    def __init__(self, names):
        self.names = {}
        self.types = collections.defaultdict(list)
        self.by_id = {}
        for name in api.walk(names):
            self.names.setdefault(name.qualified, name)
            if name.is_type or name.kind in ("typedef", "function"):
                if not self.types[name.last] or name.qualified not in {n.qualified for n in self.types[name.last]}:
                    self.types[name.last].append(name)
            self.by_id[name.element.get("id")] = name

    def address(self, name, page):
        return pages.relative(address_of(name.file), page) + "#" + anchor_of(name)

    def find(self, text):
        """The public name that `text` means: ls::train::Model, MirroredStrategy, train::losses::mse(...)."""
        match = re.fullmatch(r"(?:strategy\.(?=\w))?((?:\w+::)*\w+)(?:\(.*\))?", text, re.S)
        if not match:
            return None
        parts = match[1].split("::")
        if parts[0] in ("ls", "lockstep"):
            parts = parts[1:]
            spaces = api.SPACES[:1]
        elif text.startswith("strategy."):
            spaces = ("lockstep::Strategy",)
        else:
            spaces = api.SPACES + ("lockstep::Strategy",) if "(" not in text else ("lockstep",)
        for space in spaces:
            name = self.names.get("::".join([space, *parts]))
            if name and (name.is_type or len(parts) > 1 or text.startswith("strategy.")):
                return name
        found = self.types.get(parts[0], ()) if len(parts) == 1 else ()
        return found[0] if len(found) == 1 and found[0].is_type and parts[0][0].isupper() else None

    def link_of(self, text, page):
        name = self.find(text)
        return self.address(name, page) if name else None


def first_sentence(text):
    """The first sentence of a comment, as Markdown."""
    paragraph = re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0]
    paragraph = " ".join(paragraph.split())
    match = re.match(r"(.*?[.!?:])(?:\s+(?=[A-Z`\"])|$)", paragraph)
    found = (match[1] if match else paragraph).rstrip(":")
    return found if found.endswith((".", "!", "?")) or not found else found + "."


def groups(names):
    """Functions with the one whose comment is about them, too; other names by themselves."""
    result = {}
    for name in names:
        leader = name.covered_by if name.kind == "function" and name.covered_by in names else name
        result.setdefault(id(leader), []).append(name)
    return list(result.values())


class Reference:
    def __init__(self, root, names, headers, entries):
        self.root, self.headers = root, headers
        self.index = Index(names)
        self.signatures = signatures.Signatures(self.index)
        self.entries = entry_headers(root, set(headers), entries)
        self.by_header = collections.defaultdict(list)
        for name in names:
            self.by_header[name.file].append(name)
        self.used = self.names_on_pages()
        texts = [(root / entry).read_text() for entry in entries if entry.count("/") == 1]
        self.direct = set(entries) | set(re.findall(r'^#include "(lockstep/[^"]+)"', "".join(texts), re.M))

    def names_on_pages(self):
        """Names that the pages and examples write, `so` or ls::so."""
        folders = [(folder, p) for folder in ("docs", "examples") for p in sorted((self.root / folder).rglob("*.*"))]
        texts = [p.read_text() for _, p in folders if p.suffix in (".md", ".cpp") and p.name != "design.md"]
        return set(re.findall(r"(?:::|`)(\w+)", " ".join(texts)))

    def is_front(self, header):
        """Whether users need the header: it has names that pages mention, or is among those a program is told to include."""
        told = header in self.direct
        return told or any(n.last in self.used for n in self.by_header[header] if n.is_type or n.kind == "function")

    def label(self, header):
        """The class that the header is about, or the header's name."""
        stem = header.rpartition("/")[2].removesuffix(".h")
        names = self.by_header[header]
        classes = {n.last for n in names if n.is_type}
        named = [last for last in classes if last.lower() == stem.replace("_", "")]
        main = [n.last for n in names if n.kind == "class"]
        if named or len(main) != 1 or sum(n.kind == "function" and not n.is_special for n in names) > 3:
            return named[0] if named else stem
        return main[0]

    def areas(self):
        """[(title, [(label, header, is_front)])] in the order of AREAS."""
        result = []
        for folder, title in AREAS.items():
            headers = [h for h in self.headers if h.startswith(f"lockstep/{folder}/") and self.by_header[h]]
            rows = sorted(
                ((self.label(h), h, self.is_front(h)) for h in headers), key=lambda row: (row[0][0].islower(), row[0].lower())
            )
            result.append((title, rows))
        return result

    def entry(self, group, writer, page):
        """What the template shows for one name, or for functions with one comment."""
        name = group[0]
        doc = writer.fragment(name.doc, page) if name.doc else ""
        overview = [m for m in name.members if m.kind in ("variable", "enumvalue")]
        plain = [
            m for m in name.members if m.last.startswith("~") or (m.kind == "typedef" and m.last in api.STANDARD and not m.doc)
        ]
        plain += [m for m in name.members if m.is_special and "detail::" in (m.element.findtext("argsstring") or "")]
        rest = [m for m in name.members if m not in overview and m not in plain]
        titles = {n.last: anchor_of(n) for n in group if not n.is_special} or {name.last: anchor_of(name)}
        return {
            "id": anchor_of(name),
            "name": name,
            "title": ", ".join(titles),
            "titles": list(titles.items()),
            "signatures": [
                {"id": anchor_of(n) if n.last != name.last else None, "text": self.signatures.of(n, page)} for n in group
            ],
            "doc": doc,
            "fields": [self.field(m, writer, page) for m in overview],
            "members": [self.entry(g, writer, page) for g in groups(rest)],
        }

    def field(self, name, writer, page):
        signature = self.signatures.of(name, page) if name.kind == "variable" else f"<b>{name.last}</b>"
        return {"id": anchor_of(name), "signature": signature, "doc": writer.fragment(name.doc, page)}

    def constants(self, names, writer, page):
        """Several constants of one namespace as a table, in place of an entry for each."""
        scope = names[0].scope.rpartition("::")[2]
        entry = {
            "id": scope,
            "name": names[0],
            "title": scope,
            "titles": [(scope, scope)],
            "signatures": [],
            "doc": "",
            "members": [],
        }
        return entry | {"fields": [self.field(name, writer, page) for name in names]}

    def entries_of(self, names, writer, page):
        constants = [name for name in names if name.kind == "variable"]
        if len(constants) < 3:
            constants = []
        entries = [self.entry(group, writer, page) for group in groups([name for name in names if name not in constants])]
        return entries + ([self.constants(constants, writer, page)] if constants else [])

    def summary(self, group):
        return first_sentence(group[0].doc)

    def pages(self, writer):
        """A page for each header that has public names, with its entries for the template."""
        for header in self.headers:
            names = self.by_header[header]
            if not names:
                continue
            address = address_of(header)
            label = self.label(header)
            names = sorted(names, key=lambda n: n.last != label)
            entries = self.entries_of(names, writer, address)
            unique_ids(entries, set())
            page = pages.Page(address, label, "", template="reference.html", area="reference")
            page.headings = [(2, anchor, title) for e in entries if e["id"] for title, anchor in e["titles"]]
            if entries[0]["title"] == label:
                seen = {}
                for member in entries[0]["members"]:
                    if member["id"] and not member["name"].is_special:
                        seen |= {title: (3, anchor, title) for title, anchor in member["titles"] if title not in seen}
                page.headings[1:1] = seen.values()
            page.intro = {
                "header": header,
                "entries": entries,
                "include": self.entries.get(header, header),
                "space": names[0].scope,
            }
            found = {}
            for name in api.walk(names):
                if not name.is_special and name.kind != "enumvalue":
                    comment = name.doc or (name.covered_by.doc if name.covered_by else "")
                    found.setdefault(anchor_of(name), " ".join(comment.replace("`", "").split())[:300])
            page.sections = [(anchor, anchor.replace(".", "::"), text) for anchor, text in found.items()]
            yield page


def unique_ids(entries, seen):
    """Overloads with comments of their own share a name: only the first is its anchor."""
    for entry in entries:
        for part in [entry, *entry["signatures"], *entry["fields"]]:
            if part["id"] in seen:
                part["id"] = None
            seen.add(part["id"] or "")
        unique_ids(entry["members"], seen)
