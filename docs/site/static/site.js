// Search, the choice of colours, the menu of small screens, and buttons that copy code. Pages work without it.
"use strict";

const root = document.currentScript.dataset.root;
const $ = (selector) => document.querySelector(selector);

$(".theme-button").addEventListener("click", () => {
  const html = document.documentElement;
  html.dataset.theme = html.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", html.dataset.theme);
});

$(".menu-button").addEventListener("click", (event) => {
  const open = document.body.classList.toggle("menu-open");
  event.currentTarget.setAttribute("aria-expanded", open);
});

for (const block of document.querySelectorAll(".code")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  block.append(button);
}

// Marks the section on screen in the list of sections.
const entries = new Map([...document.querySelectorAll(".toc a")].map((link) => [decodeURIComponent(link.hash.slice(1)), link]));
const targets = [...entries.keys()].map((id) => document.getElementById(id)).filter(Boolean);
const mark = () => {
  const current = targets.findLast((target) => target.getBoundingClientRect().top < 120);
  for (const [id, link] of entries) link.toggleAttribute("data-current", current !== undefined && id === current.id);
};
if (targets.length) {
  addEventListener("scroll", mark, { passive: true });
  mark();
}
const here = $(".side [aria-current]");
if (here && here.offsetTop > innerHeight - 150) $(".side").scrollTop = here.offsetTop - innerHeight / 2;

// The search. Its index is loaded when the reader first goes to the field.
const field = $(".find input");
const results = $(".results");
let index = null;
let chosen = -1;

const loadIndex = () =>
  new Promise((done) => {
    if (index) return done();
    const script = document.createElement("script");
    script.src = `${root}static/search_index.js`;
    script.onload = () => {
      index = window.searchIndex.flatMap(([title, area, address, sections]) =>
        sections.map(([anchor, heading, text]) => {
          const url = address + (anchor ? `#${anchor}` : "");
          const parts = heading.replace(/([a-z])(?=[A-Z])/g, "$1 ").toLowerCase(); // MirroredStrategy has a strategy in it
          return { title, area, heading, text, url, isName: area === "reference", head: heading.toLowerCase(), parts, body: text.toLowerCase() };
        }),
      );
      done();
    };
    document.head.append(script);
  });

// Words that a question has and its answer need not.
const fillers = new Set(
  "a an and are as at be by can do does for from get has have how i if in is it me my not of on or should so that the there this to use what when where which why will with you your".split(" "),
);
const wordsOf = (text) => {
  const all = text.toLowerCase().replace(/\bls::|lockstep::/g, "").split(/[\s(),?!]+/).filter(Boolean);
  const telling = all.filter((word) => !fillers.has(word));
  // "gradients" finds "gradient", "clipping" finds "clip", and "unencrypted" finds "encrypt".
  const stem = (word) => (/^[a-z]{5,}$/.test(word) ? word.replace(/(?:(.)\1ing|ing|ies|s|ed)$/, "$1").replace(/^un(?=[a-z]{6})/, "") : word);
  return (telling.length ? telling : all).map(stem);
};

// A name that is the word comes first, then names and headings that have it, then text. Pages before names, if both fit.
const begins = (text, word) => {
  for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + 1)) if (at === 0 || !/[a-z]/.test(text[at - 1])) return true;
  return false;
};
const score = (entry, words) => {
  let total = 0;
  let found = 0;
  for (const word of words) {
    const last = entry.head.split(/::|\./).pop();
    let points = 0;
    if (last === word || entry.head === word) points = 100;
    else if (entry.head.startsWith(word) || last.startsWith(word)) points = 50;
    else if (begins(entry.parts, word) || (word.length > 6 && entry.head.includes(word))) points = 30;
    else if (begins(entry.title.toLowerCase(), word)) points = 12 + (begins(entry.body, word) ? 4 : 0);
    else if (begins(entry.body, word)) points = entry.isName ? 3 : 8 + Math.min(4, entry.body.split(word).length - 1);
    total += points;
    found += points > 0;
  }
  const depth = entry.head.split("::").length;
  return { found, total: total + (entry.isName ? -3 * depth : 12) - Math.min(entry.head.length, 60) / 30 };
};

const escapeHtml = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const emphasize = (text, words) => {
  const found = new RegExp(`(${words.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "gi");
  return text.split(found).map((part, i) => (i % 2 ? `<mark>${escapeHtml(part)}</mark>` : escapeHtml(part))).join("");
};
const excerpt = (entry, words) => {
  const places = words.map((word) => entry.body.indexOf(word)).filter((place) => place >= 0);
  const at = places.length ? Math.max(0, Math.min(...places) - 40) : 0;
  return (at ? "… " : "") + entry.text.slice(at, at + 130);
};

const search = async () => {
  await loadIndex();
  const words = wordsOf(field.value);
  chosen = -1;
  if (!words.length) return void (results.hidden = true);
  const scored = index.map((entry) => [score(entry, words), entry]);
  const most = Math.max(1, ...scored.map(([{ found }]) => found));
  const found = scored.filter(([points]) => points.found === most || (most > 2 && points.found === most - 1));
  found.sort(([a], [b]) => b.found - a.found || b.total - a.total);
  results.innerHTML = found.length
    ? found.slice(0, 14).map(([, entry]) => {
        const heading = entry.isName ? `<code>${emphasize(entry.heading, words)}</code>` : emphasize(entry.heading, words);
        const where = entry.isName ? entry.url.split("/").slice(0, 2).join(" · ") : entry.title === entry.heading ? "" : escapeHtml(entry.title);
        return `<a href="${root}${entry.url}"><b>${heading}</b> <small>${where}</small><span>${emphasize(excerpt(entry, words), words)}</span></a>`;
      }).join("")
    : "<p>Nothing found.</p>";
  results.hidden = false;
};

field.addEventListener("focus", loadIndex, { once: true });
field.addEventListener("input", search);
field.addEventListener("keydown", (event) => {
  const links = [...results.querySelectorAll("a")];
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    chosen = Math.max(0, Math.min(links.length - 1, chosen + (event.key === "ArrowDown" ? 1 : -1)));
    links.forEach((link, i) => link.classList.toggle("chosen", i === chosen));
    links[chosen]?.scrollIntoView({ block: "nearest" });
  } else if (event.key === "Enter") {
    links[Math.max(0, chosen)]?.click();
  } else if (event.key === "Escape") {
    results.hidden = true;
    field.blur();
  }
});
document.addEventListener("click", (event) => {
  if (!event.target.closest(".find")) results.hidden = true;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    field.focus();
  }
});
// pages.html?q=clip opens with a search, for links and for tests.
const asked = new URLSearchParams(location.search).get("q");
if (asked) {
  field.value = asked;
  search();
}
