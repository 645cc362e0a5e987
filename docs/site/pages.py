"""Turns the tree's Markdown pages, and the sources that they link to, into pages of the site."""

import dataclasses
import html
import os
import re

import markdown_it
import pygments
import pygments.formatters
import pygments.lexers

ADDRESSES = {
    "README.md": "index.html",
    "docs/README.md": "pages.html",
    "CONTRIBUTING.md": "contributing.html",
    "CHANGELOG.md": "changelog.html",
    "SECURITY.md": "security.html",
    "examples/README.md": "examples.html",
}
ALIASES = {"text": None, "console": None, "sh": "bash"}
FORMATTER = pygments.formatters.HtmlFormatter(nowrap=True, classprefix="c-")


@dataclasses.dataclass
class Page:
    address: str  # path inside the site
    title: str
    body: str
    template: str = "page.html"
    headings: list = dataclasses.field(default_factory=list)  # (level, id, text)
    sections: list = dataclasses.field(default_factory=list)  # (id, heading, text), for the search
    area: str = ""  # which entry of the top bar it belongs to
    intro: dict = dataclasses.field(default_factory=dict)


def address_of(source):
    """Where the site has a file of the tree."""
    if source in ADDRESSES:
        return ADDRESSES[source]
    if source.endswith(".md"):
        return source.removeprefix("docs/").removesuffix(".md") + ".html"
    return f"source/{source}.html"


def relative(target, page):
    """The link from a page to a path inside the site."""
    return os.path.relpath(target, os.path.dirname(page) or ".")


def slug(text):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def highlight(code, language):
    language = ALIASES.get(language, language)
    if not language:
        return html.escape(code)
    return pygments.highlight(code, pygments.lexers.get_lexer_by_name(language, stripnl=False), FORMATTER)


def code_block(code, language):
    label = f' data-language="{html.escape(language)}"' if language else ""
    return f'<div class="code"{label}><pre><code>{highlight(code, language)}</code></pre></div>\n'


def plain(tokens):
    return "".join(t.content if t.type in ("text", "code_inline") else " " if t.type == "softbreak" else "" for t in tokens)


class Writer:
    """Renders Markdown. `link_of(name, page)` gives the address of a public name, or None."""

    def __init__(self, root, link_of):
        self.root, self.link_of = root, link_of
        self.wanted = set()  # files of the tree that pages link to
        self.parser = markdown_it.MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
        rules = self.parser.renderer.rules
        rules["table_open"] = lambda *_: '<div class="table"><table>\n'
        rules["table_close"] = lambda *_: "</table></div>\n"
        rules["fence"] = lambda tokens, i, *_: code_block(tokens[i].content, tokens[i].info.strip())
        rules["code_block"] = lambda tokens, i, *_: code_block(tokens[i].content, self.indented)
        self.indented = ""

    def target(self, href, source, page):
        """The address for a link on a page that is made of `source`."""
        if re.match(r"[a-z]+:", href) or href.startswith("#"):
            return href
        path, _, anchor = href.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(source), path))
        if (self.root / path).is_dir() and (self.root / path / "README.md").exists():
            path += "/README.md"
        self.wanted.add(path)
        return relative(address_of(path), page) + (f"#{anchor}" if anchor else "")

    @staticmethod
    def is_foreign(tokens, i):
        """Whether tokens[i] is in the first column of a table that has TensorFlow's names there."""
        if tokens[i - 1].type != "td_open" or tokens[i - 2].type != "tr_open":
            return False
        head = max(k for k in range(i) if tokens[k].type == "thead_open")
        return tokens[head + 3].content.startswith("TensorFlow")

    def inline(self, token, source, page, links=True):
        """Rewrites links and images, and makes code that is a public name a link."""
        in_link = 0
        for child in token.children:
            if child.type == "link_open":
                in_link += 1
                child.attrs["href"] = self.target(child.attrs["href"], source, page)
            elif child.type == "link_close":
                in_link -= 1
            elif child.type == "image":
                child.attrs["src"] = self.image(child.attrs["src"], source, page)
            elif child.type == "code_inline" and links and not in_link:
                found = self.link_of(child.content, page)
                if found:
                    child.type = "html_inline"
                    child.content = f'<a class="name" href="{html.escape(found)}"><code>{html.escape(child.content)}</code></a>'

    def image(self, src, source, page):
        path = os.path.normpath(os.path.join(os.path.dirname(source), src))
        self.wanted.add(path)
        return relative(f"static/{os.path.basename(path)}", page)

    def fragment(self, text, page, code="cpp"):
        """A comment as HTML; its indented blocks are C++."""
        self.indented = code
        tokens = self.parser.parse(
            re.sub(r"(?<![\w/`(\[])\(?(docs/[\w/]+\.md)(?=[\s.,;:)])", lambda m: m[0].replace(m[1], f"[{m[1]}]({m[1]})"), text)
        )
        for token in tokens:
            if token.type == "inline":
                self.inline(token, "", page)
        return self.parser.renderer.render(tokens, self.parser.options, {})

    def page(self, source):
        """The page of a Markdown file."""
        address = address_of(source)
        self.indented = ""
        tokens = self.parser.parse((self.root / source).read_text())
        result = Page(address, source, "")
        seen = {}
        section = ["", "", []]
        sections = [section]
        for i, token in enumerate(tokens):
            if token.type == "heading_open":
                text = plain(tokens[i + 1].children)
                anchor = slug(text)
                seen[anchor] = seen.get(anchor, -1) + 1
                anchor += f"-{seen[anchor]}" if seen[anchor] else ""
                token.attrs["id"] = anchor
                level = int(token.tag[1])
                if level == 1:
                    result.title = text
                else:
                    result.headings.append((level, anchor, text))
                section = [anchor if level > 1 else "", text, []]
                sections.append(section)
            elif token.type == "inline":
                if tokens[i - 1].type != "heading_open":
                    section[2].append(plain(token.children))
                foreign = self.is_foreign(tokens, i)
                self.inline(token, source, address, links=not foreign)
            elif token.type in ("fence", "code_block"):
                section[2].append(token.content)
        self.add_anchors(tokens)
        if source == "README.md":
            result.intro, tokens = self.front(tokens)
            result.template = "front.html"
        result.body = self.parser.renderer.render(tokens, self.parser.options, {})
        result.sections = [(anchor, text, " ".join(" ".join(words).split())) for anchor, text, words in sections if text]
        return result

    def add_anchors(self, tokens):
        for i, token in enumerate(tokens):
            if token.type == "heading_close" and token.tag != "h1":
                mark = type(token)("html_inline", "", 0)
                anchor = tokens[i - 2].attrs["id"]
                mark.content = f'<a class="anchor" href="#{anchor}" aria-label="Link to this section">#</a>'
                tokens[i - 1].children.append(mark)

    def front(self, tokens):
        """Takes what the front page shows by itself out of README.md: title, first paragraph, picture, features, links."""
        end = next(i for i, t in enumerate(tokens) if t.type == "heading_open" and t.tag == "h2")
        intro = {"features": [], "lead": "", "text": "", "picture": ""}
        for i, token in enumerate(tokens[:end]):
            if token.type != "inline" or tokens[i - 1].type != "paragraph_open":
                continue
            content = self.parser.renderer.renderInline(token.children, self.parser.options, {})
            if token.children[0].type == "image":
                intro["picture"] = token.children[0].attrs["src"]
                intro["alt"] = token.children[0].content
            elif tokens[i - 2].type == "list_item_open":
                intro["features"].append(content)
            elif not intro["lead"]:
                first, *rest = re.split(r"(?<=\.)\s", content, maxsplit=1)
                intro["lead"], intro["text"] = first.replace("\n", " "), "".join(rest)
        return intro, tokens[end:]


def source_page(root, path):
    """A file or a folder of the tree that pages link to, as a page."""
    place = root / path
    address = address_of(path)
    if place.is_dir():
        files = sorted(p for p in place.iterdir() if p.is_file())
        links = "".join(
            f'<li><a href="{relative(address_of(f"{path}/{p.name}"), address)}"><code>{p.name}</code></a></li>' for p in files
        )
        return Page(address, path, f"<h1><code>{path}</code></h1>\n<ul>{links}</ul>", area="examples"), [
            f"{path}/{p.name}" for p in files
        ]
    text = place.read_text()
    try:
        language = pygments.lexers.get_lexer_for_filename(place.name).aliases[0]
    except pygments.util.ClassNotFound:
        language = "bash" if text.startswith("#!") else "text"
    body = f'<h1 class="path"><code>{path}</code></h1>\n' + code_block(text, language)
    return Page(address, path, body, area="examples"), []
