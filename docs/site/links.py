"""Checks the links of a generated site: files, anchors, and that nothing is loaded from elsewhere.

links.py SITE
"""

import html.parser
import os
import pathlib
import re
import sys
import urllib.parse


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.twice, self.links, self.loaded = set(), set(), [], []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            if attributes["id"] in self.ids:
                self.twice.add(attributes["id"])
            self.ids.add(attributes["id"])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif tag == "link" and "href" in attributes:
            self.loaded.append(attributes["href"])
        if "src" in attributes:
            self.loaded.append(attributes["src"])


def check(site):
    """Returns a line for each mistake, and how many links were checked."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = Reader()
        pages[path].feed(path.read_text())
    wrong, count, reached = [], 0, {site / "index.html"}
    for path, page in pages.items():
        where = path.relative_to(site)
        wrong += [f"{where}: two elements have the id '{anchor}'" for anchor in sorted(page.twice)]
        for link in page.links + page.loaded:
            count += 1
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                if link in page.loaded and url.scheme != "data":
                    wrong.append(f"{where}: loads {link} from elsewhere")
                continue
            target = pathlib.Path(os.path.normpath(path.parent / urllib.parse.unquote(url.path))) if url.path else path
            if not target.is_file():
                wrong.append(f"{where}: {link} does not exist")
            elif url.fragment and urllib.parse.unquote(url.fragment) not in (pages[target].ids if target in pages else ()):
                wrong.append(f"{where}: {link} has no such anchor")
            if target != path:
                reached.add(target)
    wrong += [f"{path.relative_to(site)}: no page links to it" for path in pages if path not in reached]
    for path in sorted(site.rglob("*.css")):
        for link in re.findall(r"url\(\s*['\"]?([^)'\"]+)|@import\s+['\"]([^'\"]+)", path.read_text()):
            if not "".join(link).startswith("data:"):
                wrong.append(f"{path.relative_to(site)}: loads {''.join(link)}")
    return wrong, count, len(pages)


def main():
    wrong, count, pages = check(pathlib.Path(sys.argv[1]).resolve())
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(f"{len(wrong)} broken links")
    print(f"{count} links on {pages} pages, none of them broken")


if __name__ == "__main__":
    main()
