"""Writes the site: the Markdown pages, the sources they link to, and the API reference.

build.py ROOT SITE
"""

import json
import os
import pathlib
import re
import shutil
import sys

import jinja2

import api
import pages
import reference


def docs_sections(root):
    """The sections of docs/README.md, headings or heads of tables, with the pages that they link to: the navigation."""
    sections = [("pages", [])]
    for line in (root / "docs/README.md").read_text().split("\n"):
        head = re.match(r"## (.+)|\| *([^|\[\]-]+?) *\| *\|$", line)
        if head:
            sections.append((head[1] or head[2], []))
        row = line.split("|")[1] if line.startswith("|") else line if line.startswith("- ") else ""
        for label, target in re.findall(r"\[([^\]]+)\]\(([^)#]+\.md)\)", row):
            sections[-1][1].append((label, os.path.normpath(os.path.join("docs", target))))
    return [section for section in sections if section[1]]


def contributing_pages(root):
    return [
        "CONTRIBUTING.md",
        *sorted(f"docs/contributing/{p.name}" for p in (root / "docs/contributing").glob("*.md")),
        "CHANGELOG.md",
        "SECURITY.md",
    ]


def split_images(root, site, path):
    """A picture that follows the system's colours becomes two, since readers can choose colours for the site alone."""
    source, target = root / path, site / "static" / pathlib.Path(path).name
    text = source.read_text() if source.suffix == ".svg" else ""
    dark = re.search(r"@media\s*\(prefers-color-scheme:\s*dark\)\s*\{((?:[^{}]*\{[^{}]*\})*)\s*\}", text)
    if not dark:
        shutil.copy(source, target)
        return
    target.write_text(text.replace(dark[0], ""))
    target.with_stem(target.stem + "-dark").write_text(text.replace(dark[0], dark[1]))


class Site:
    def __init__(self, root, site):
        self.root, self.site = root, site
        names, headers, entries = api.read(root)
        self.reference = reference.Reference(root, names, headers, entries)
        self.writer = pages.Writer(root, self.reference.index.link_of)
        self.version = re.search(r"project\(\s*\w+\s+VERSION\s+([\d.]+)", (root / "CMakeLists.txt").read_text(), re.I)[1]
        self.sections = docs_sections(root)
        self.contributing = contributing_pages(root)
        self.pages = []
        self.jinja = jinja2.Environment(
            loader=jinja2.FileSystemLoader(root / "docs/site/templates"), trim_blocks=True, lstrip_blocks=True
        )

    def collect(self):
        listed = [source for _, links in self.sections for _, source in links]
        unlisted = {str(p.relative_to(self.root)) for p in (self.root / "docs").rglob("*.md")} - {
            *listed,
            *self.contributing,
            "docs/README.md",
        }
        if unlisted:
            sys.exit(f"docs/README.md, which is the navigation, has no line for {', '.join(sorted(unlisted))}")
        open_ = ["README.md", "LICENSE", "docs/README.md", *listed, *self.contributing]
        done = set()
        while open_:
            source = open_.pop(0)
            if source in done or not (self.root / source).exists():
                continue
            done.add(source)
            if source.endswith(".md"):
                page = self.writer.page(source)
                page.area = (
                    "examples" if source.startswith("examples/") else "contributing" if source in self.contributing else "docs"
                )
                self.pages.append(page)
            elif not source.endswith((".svg", ".png")):
                page, more = pages.source_page(self.root, source)
                self.pages.append(page)
                open_ += more
            open_ += sorted(self.writer.wanted - done)
        self.pages += self.reference.pages(self.writer)
        self.pages.append(self.reference_index())

    def reference_index(self):
        address = "reference/index.html"
        page = pages.Page(address, "Reference", "", template="reference_index.html", area="reference")
        areas = []
        for title, rows in self.reference.areas():
            shown = []
            for label, header, front in rows:
                groups = reference.groups(self.reference.by_header[header])
                links = {g[0].last: self.reference.index.address(g[0], address) for g in reversed(groups) if not g[0].is_special}
                main = next((g for g in groups if g[0].last == label), groups[0])
                summary = self.writer.parser.renderInline(self.reference.summary(main))
                shown.append(
                    {
                        "label": label,
                        "address": reference.address_of(header),
                        "front": front,
                        "names": list(links.items())[::-1],
                        "summary": summary,
                    }
                )
            areas.append((title, shown))
            page.headings.append((2, pages.slug(title), title))
        page.intro = {"areas": areas}
        return page

    def menu(self):
        """[(title, [(label, address)])] of the pages."""
        menu = [(title, [(label, pages.address_of(source)) for label, source in links]) for title, links in self.sections]
        known = {address for _, links in menu for _, address in links}
        more = [
            (p.title, p.address)
            for p in self.pages
            if p.address in map(pages.address_of, self.contributing) and p.address not in known
        ]
        return menu + [("to contribute", more)]

    def write(self):
        menu = self.menu()
        order = [("Home", "index.html"), *(row for _, links in menu for row in links)]
        areas = [
            (title, [(label, reference.address_of(h)) for label, h, front in rows if front])
            for title, rows in self.reference.areas()
        ]
        for page in self.pages:
            place = [address for _, address in order].index(page.address) if page.address in [a for _, a in order] else None
            around = {
                "before": order[place - 1] if place else None,
                "after": order[place + 1] if place is not None and place + 1 < len(order) else None,
            }
            path = self.site / page.address
            path.parent.mkdir(parents=True, exist_ok=True)
            to = lambda target, page=page: pages.relative(target, page.address)
            text = self.jinja.get_template(page.template).render(
                page=page, menu=menu, areas=areas, to=to, version=self.version, slug=pages.slug, **around
            )
            path.write_text(text)
        static = self.site / "static"
        shutil.copytree(self.root / "docs/site/static", static, dirs_exist_ok=True)
        for path in self.writer.wanted:
            if path.endswith((".svg", ".png")) and (self.root / path).exists():
                split_images(self.root, self.site, path)
        entries = [
            [page.title, page.area, page.address, [list(s) for s in page.sections]] for page in self.pages if page.sections
        ]
        (static / "search_index.js").write_text(
            "window.searchIndex=" + json.dumps(entries, ensure_ascii=False, separators=(",", ":")) + ";\n"
        )


def main():
    root, site = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    result = Site(root, site)
    result.collect()
    result.write()
    print(f"{len(result.pages)} pages in {sys.argv[2]}")


main()
