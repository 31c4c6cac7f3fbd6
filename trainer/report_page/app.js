// Views, routes and start. Routes: #overview, #settings, #trees/<forest>/<task>/<tree>/<node>.

function settingsView() {
  if (!page.config && !page.versions) return el("div", { class: "card empty" }, "No config.yaml in this run folder.");
  const groups = Object.entries(page.config ?? {});
  const plain = groups.filter(([, value]) => value === null || typeof value !== "object");
  const nested = groups.filter(([, value]) => value !== null && typeof value === "object");
  const group = (name, rows, open) =>
    el(
      "details",
      { class: "card group", open },
      el("summary", null, name, el("span", null, `${rows.length}`)),
      el(
        "table",
        null,
        el(
          "tbody",
          null,
          rows.map(([key, value]) => el("tr", null, el("td", null, key), el("td", null, el("code", null, value)))),
        ),
      ),
    );
  return el(
    "div",
    null,
    heading("Settings", "The resolved configuration; secrets are masked."),
    group(
      "run",
      plain.map(([k, v]) => [k, shown(v)]),
      true,
    ),
    nested.map(([name, value]) => group(name, flatten(value), false)),
    page.versions && [heading("Versions"), group("libraries", Object.entries(page.versions), true)],
  );
}

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function flatten(value, prefix = "") {
  return Object.entries(value).flatMap(([key, item]) =>
    item !== null && typeof item === "object" && !Array.isArray(item) && Object.keys(item).length
      ? flatten(item, `${prefix}${key}.`)
      : [[prefix + key, shown(item)]],
  );
}

const views = {
  overview: ["Overview", overviewView],
  trees: ["Trees", treesView],
  settings: ["Settings", settingsView],
};
const shownViews = Object.keys(views).filter((name) => page.views.includes(name));

function show() {
  const [name, ...rest] = location.hash.slice(1).split("/").map(decode);
  const view = shownViews.includes(name) ? name : shownViews[0];
  document
    .getElementById("tabs")
    .replaceChildren(
      ...(shownViews.length > 1
        ? shownViews.map((key) => el("a", { href: `#${key}`, "aria-current": key === view && "page" }, views[key][0]))
        : []),
    );
  const main = document.getElementById("view");
  const scroll = document.querySelector(".tasks")?.scrollTop;
  const moved = main.dataset.view !== view;
  main.dataset.view = view;
  main.replaceChildren(views[view][1](view === name ? rest : []));
  if (moved) scrollTo(0, 0);
  else if (scroll) document.querySelector(".tasks")?.scrollTo(0, scroll);
  const chosen = document.querySelector(".tasks [aria-current]");
  if (chosen) reveal(chosen, document.querySelector(".tasks"));
  const node = document.querySelector('.node[aria-selected="true"]');
  if (node) reveal(node, document.getElementById("plot"));
}

// Scrolls `box` alone (never the page) as little as needed to show `item`.
function reveal(item, box) {
  const [inner, outer] = [item.getBoundingClientRect(), box.getBoundingClientRect()];
  const space = 24;
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top + space;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + space;
  if (inner.left < outer.left) box.scrollLeft -= outer.left - inner.left + space;
  else if (inner.right > outer.right) box.scrollLeft += inner.right - outer.right + space;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

document.getElementById("run-name").textContent = page.title;
document.getElementById("footer").textContent = [
  "Espalier",
  page.written && `written ${page.written}`,
  ...Object.entries(page.versions ?? {}).map(([name, version]) => `${name} ${version}`),
]
  .filter(Boolean)
  .join("  ·  ");
addEventListener("hashchange", show);
show();
