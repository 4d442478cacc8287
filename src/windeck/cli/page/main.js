// The state is in the address after #, so it can be linked to: q, the search; n, the item shown;
// name, the item that is called so.
const data = JSON.parse(document.getElementById("data").textContent);
data.items.forEach((item, i) => {
  item.key = String(i + 1);
  const pieces = parts(item.name);
  item.tail = pieces[pieces.length - 1] || item.name;
});
const byKey = new Map(data.items.map((item) => [item.key, item]));

function state() {
  const hash = location.hash.slice(1);
  const given = new URLSearchParams(hash);
  const item = itemNamed(data.items, hash);
  // A name that is not there is searched for, which says so.
  return { q: given.get("q") || (item ? "" : given.get("name")) || "", n: item ? item.key : given.get("n") };
}

function link(changes) {
  const now = { ...state(), ...changes };
  const next = new URLSearchParams();
  if (now.q) next.set("q", now.q);
  if (now.n !== null && now.n !== undefined) next.set("n", now.n);
  return "#" + next.toString();
}

// No counters of steps, and no states of loaders and random generators, which would exceed all weights.
function isWeight(item) {
  const counter = !item.shape.length && /[/.](step|num_batches_tracked)$/.test(item.name);
  return /^(model|optimizer)\//.test(item.name) && !counter;
}

function overview() {
  const of = (kind) => data.items.filter((item) => item.kind === kind);
  const odd = data.items.filter(flagged);
  const out = [make("h2", {}, "Overview"), facts([["store", shown(data.url)], ["namespace", shown(data.namespace)],
    ["generation", String(data.generation)], ["step", whole(data.step)], ["saved", shown(data.time)],
    ["tensors", whole(of("tensor").length)], ["embedding tables", whole(of("table").length)],
    ["bytes of data", whole(data.bytes) + " (" + bytes(data.bytes) + ")"],
    ["page made", shown(data.made)]])];
  out.push(make("h3", {}, "NaN and infinities"));
  out.push(odd.length ? make("div", { class: "results" }, odd.map((item) => leaf(item, item.name)))
    : make("p", {}, data.limits.unread ? "None in the tensors whose statistics are on this page." : "None."));
  const largest = data.items.filter((item) => item.own && item.findings && item.findings.largest.length && isWeight(item))
    .map((item) => ({ item, found: item.findings.largest[0] }))
    .sort((a, b) => Math.abs(Number(b.found[1])) - Math.abs(Number(a.found[1]))).slice(0, 10);
  if (largest.length) {
    out.push(make("h3", {}, "Largest magnitudes"), make("div", { class: "scroll" }, make("table", {}, make("tbody", {},
      largest.map(({ item, found }) => make("tr", {},
        make("td", { class: "text" }, make("a", { href: link({ n: item.key }) }, make("bdi", {}, shown(item.name)))),
        make("th", { scope: "row" }, place(found[0])), cell(found[1], false)))))));
  }
  out.push(make("h3", { id: "log" }, "Generations kept"), make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ["generation", "step", "saved", "refers to", "tags"].map((t) => make("th", { scope: "col" }, t)))),
    make("tbody", {}, data.log.map((one) => make("tr", {}, make("td", one.generation === data.generation ? { class: "hit" } : {}, String(one.generation)),
      make("td", {}, whole(one.step)), make("td", {}, shown(one.time)),
      make("td", { class: "text" }, one.bases.length ? one.bases.join(", ") : "itself alone"),
      make("td", { class: "text" }, shown(one.tags.join(", ")))))))));
  out.push(make("h3", {}, "What this page holds"), make("div", { class: "note", id: "limits" },
    data.limits.text.map((line) => make("p", {}, shown(line)))));
  return out;
}

let drawn = null;  // the filter of the tree: without a change, its groups stay open

function show() {
  const now = state();
  const box = document.getElementById("query");
  if (box.value !== now.q) box.value = now.q;
  const asked = now.q ? condition(now.q) : null;
  const filter = asked ? "" : now.q;
  if (filter !== drawn) drawTree(filter ? new Set(named(filter).map((item) => item.key)) : null, isId(filter));
  drawn = filter;
  const item = now.n ? byKey.get(now.n) : null;
  const searched = !item && now.q !== "" && now.n !== "";
  const body = item ? { tensor: showTensor, table: showTable, value: showValue }[item.kind](item, asked && asked.holds)
    : searched ? showSearch(now.q, asked) : overview();
  const main = document.getElementById("main");
  main.replaceChildren(...body);
  main.scrollTop = 0;
  markCurrent(item, !searched);
}

function visit(hash) {
  try { history.replaceState(null, "", hash); } catch { location.hash = hash; }
  show();
}

document.getElementById("summary").textContent =
  `generation ${data.generation} · step ${whole(data.step)} · ${data.time} · ` +
  `${plural(data.items.filter((item) => item.kind === "tensor").length, "tensor")}, ${bytes(data.bytes)}`;
document.getElementById("search").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("query").addEventListener("input", (event) => visit(link({ q: event.target.value, n: null })));
document.addEventListener("keydown", (event) => {
  const box = document.getElementById("query");
  const typing = event.target instanceof HTMLInputElement;
  if (event.key === "/" && !typing) { event.preventDefault(); box.focus(); box.select(); }
  if (event.key === "Escape" && document.activeElement === box) { box.value = ""; visit(link({ q: "", n: null })); }
});
document.getElementById("tree").addEventListener("keydown", walk);
window.addEventListener("hashchange", show);
show();
