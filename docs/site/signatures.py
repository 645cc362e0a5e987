"""Writes declarations as HTML in which types are links."""

import html
import re


def tidy(text):
    """Doxygen's spaces in types, as clang-format would have them."""
    text = re.sub(r"<\s+", "<", re.sub(r"\s+>", ">", " ".join(text.split())))
    return re.sub(r"\s+([&*]+)", r"\1", text).replace("< ", "<")


class Signatures:
    def __init__(self, index):
        self.index = index

    def marked(self, element):
        """Text in which a reference is \\1id\\2text\\3."""
        if element is None:
            return ""
        text = element.text or ""
        for child in element:
            inner = self.marked(child)
            text += f"\1{child.get('refid')}\2{inner}\3" if child.tag == "ref" else inner
            text += child.tail or ""
        return text

    def render(self, marked, page):
        def link(match):
            name = self.index.by_id.get(match[1])
            return f'<a href="{self.index.address(name, page)}">{match[2]}</a>' if name else match[2]

        text = html.escape(tidy(marked), quote=False)
        text = re.sub("\1([^\2]*)\2([^\3]*)\3", link, text)
        return re.sub(
            r"\b(const|class|struct|enum|template|typename|static|constexpr|virtual|explicit|using|auto|void|bool|int|double|noexcept|override)\b(?![^<]*>)",
            r'<span class="c-k">\1</span>',
            text,
        )

    def parameter(self, element):
        text = self.marked(element.find("type"))
        declared = element.findtext("declname")
        array = element.findtext("array") or ""
        if declared and array.startswith("(&"):
            text += f" (&{declared}){array.partition(')')[2]}"
        elif declared:
            text += f" {declared}{array}"
        default = self.marked(element.find("defval"))
        return text + (f" = {default}" if default else "")

    def of(self, name, page):
        element = name.element
        template = element.find("templateparamlist")
        head = ""
        if template is not None and template.findall("param"):
            head = f"template <{', '.join(self.parameter(p) for p in template.findall('param'))}>\n"
        marker = f"\4{name.last}\5"
        kind = name.kind
        if kind in ("class", "struct", "union"):
            bases = [
                b for b in element.findall("basecompoundref") if b.get("prot") == "public" and "detail" not in (b.text or "")
            ]
            shown = [f"\1{b.get('refid', '')}\2{b.text.removeprefix('lockstep::')}\3" for b in bases]
            text = f"{kind} {marker}" + (" : " + ", ".join(shown) if shown else "")
        elif kind == "enum":
            text = ("enum class " if element.get("strong") == "yes" else "enum ") + marker
        elif kind == "typedef":
            text = f"using {marker} = {self.marked(element.find('type'))}"
        elif kind == "variable":
            static = "static " if element.get("static") == "yes" else ""
            text = f"{static}{self.marked(element.find('type'))} {marker} {self.marked(element.find('initializer'))}"
        else:
            parameters = [p for p in element.findall("param") if "source_location" not in "".join(p.find("type").itertext())]
            parameters = [self.parameter(p) for p in parameters if "".join(p.find("type").itertext()) != "void"]
            suffix = (element.findtext("argsstring") or "").rpartition(")")[2].replace("=default", "")
            front = "static " if element.get("static") == "yes" and name.scope in self.index.names else ""
            front += f"{self.marked(element.find('type'))} "
            whole = f"{front}{marker}({', '.join(parameters)}){suffix.replace('=0', ' = 0')}"
            plain = re.sub("\1[^\2]*\2|[\3\4\5]", "", tidy(whole))
            if len(plain) > 96 and len(parameters) > 1:
                lines = [self.render(p, page) for p in parameters]
                whole = [
                    self.render(f"{front}{marker}(", page).lstrip(),
                    ",\n".join("    " + line for line in lines),
                    self.render(f"){suffix}", page),
                ]
                return self.name(self.render(head, page) + ("\n" if head else "") + whole[0] + "\n" + whole[1] + whole[2])
            text = whole
        return self.name(self.render(head, page) + ("\n" if head else "") + self.render(text, page))

    @staticmethod
    def name(text):
        return text.replace("\4", "<b>").replace("\5", "</b>")
