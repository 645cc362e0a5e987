#!/bin/sh
# Tests docs/site/links.py, which scripts/site runs, on small sites with and without mistakes.
#
#   tests/scripts/site_links.sh
set -eu
links=$(cd "$(dirname "$0")/../.." && pwd)/docs/site/links.py
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
mkdir "$site/a"
failed=0

# try NAME BODY WANTED: index.html with this body, beside a/page.html. What the check prints holds WANTED, and it fails; with an empty
# WANTED it passes.
try() {
  printf '<h1 id="top">Top</h1><a href="a/page.html">page</a>%s\n' "$2" >"$site/index.html"
  status=0
  said=$(python3 "$links" "$site" 2>&1) || status=$?
  case $3 in
    '') [ "$status" -eq 0 ] && return ;;
    *) case $said in *"$3"*) [ "$status" -ne 0 ] && return ;; esac ;;
  esac
  printf '%s: exit status %d, expected "%s" in:\n%s\n' "$1" "$status" "$3" "$said"
  failed=1
}

echo '<h1 id="part">Part</h1><a href="../index.html#top">up</a>' >"$site/a/page.html"
try "links that work" '<a href="a/page.html#part">part</a><a href="#top">top</a><a href="https://example.org">out</a>' ""
try "a page that is missing" '<a href="a/other.html">other</a>' "index.html: a/other.html does not exist"
try "an anchor that is missing" '<a href="a/page.html#none">none</a>' "a/page.html#none has no such anchor"
try "an anchor of its own that is missing" '<a href="#none">none</a>' "#none has no such anchor"
try "a picture that is missing" '<img src="a.png">' "a.png does not exist"
try "a script from elsewhere" '<script src="https://example.org/a.js"></script>' "from elsewhere"
try "an id twice" '<p id="top">again</p>' "two elements have the id"
echo '@font-face { src: url(https://example.org/font.woff2); }' >"$site/style.css"
try "a font" "" "style.css: loads https://example.org/font.woff2"
rm "$site/style.css"
echo '<p>alone</p>' >"$site/a/lost.html"
try "a page that no page links to" "" "a/lost.html: no page links to it"
exit $failed
