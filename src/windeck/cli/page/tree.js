// The tree of names. Groups are filled when they are first opened, so large trees are quick.
const groups = { "table": "Embedding tables", "tensor": "Tensors", "value": "Plain values" };

// The item whose name is in an address after name=: as it is or as `ls` prints it, encoded or not.
function itemNamed(items, hash) {
  const start = hash.search(/(^|&)name=/);
  if (start < 0) return undefined;
  const rest = hash.slice(hash.indexOf("=", start) + 1);  // of a name that was not encoded, also & and +
  const decoded = rest.replace(/(%[0-9a-f]{2})+/gi, (piece) => {
    try { return decodeURIComponent(piece); } catch { return piece; }
  });
  const names = [rest, decoded, new URLSearchParams(hash).get("name")];
  return names.map((name) => items.find((one) => one.name === name || one.listed === name)).find(Boolean);
}

function parts(name) {
  return name.match(/[^/.]*[/.]?/g).slice(0, -1);
}

function grown(items) {
  const root = { children: new Map(), items: [] };
  for (const item of items) {
    let node = root;
    const pieces = parts(item.name);
    const deepest = pieces.length > 40 ? [...pieces.slice(0, 40), pieces.slice(40).join("")] : pieces;
    for (const piece of deepest) {
      if (!node.children.has(piece)) node.children.set(piece, { children: new Map(), items: [] });
      node = node.children.get(piece);
    }
    node.items.push(item);
  }
  return root;
}

function totals(node) {
  let count = node.items.length;
  let size = node.items.reduce((sum, item) => sum + (item.own ? item.bytes || 0 : 0), 0);
  for (const child of node.children.values()) {
    const below = totals(child);
    count += below.count;
    size += below.size;
  }
  return { count, size };
}

function flagged(item) {
  const stats = item.stats;
  return stats && (stats.nan || stats.positive_infinite || stats.negative_infinite);
}

function leaf(item, label) {
  const beside = item.kind === "tensor" ? (item.own ? item.dtype + " " + place(item.shape) : "= " + shown(item.data))
    : item.kind === "table" ? whole(item.rows) + " × " + item.dim
    : item.value.length > 24 ? shown(item.value.slice(0, 23)) + "…" : shown(item.value);
  const flag = flagged(item) ? make("span", { class: "flag", title: "NaN or infinite values" }, " !") : null;
  return make("a", { class: "leaf", href: link({ n: item.key }), "data-key": item.key, title: shown(item.name) },
    make("span", { class: "name" }, make("bdi", {}, shown(label)), flag),
    make("span", { class: "soft" }, beside));
}

function fill(box, node, open, depth, prefix) {
  for (const item of node.items) box.append(leaf(item, item.name === "" ? "(no name)" : item.tail));
  for (let [label, child] of node.children) {
    while (child.children.size === 1 && child.items.length === 0) {
      const [[next, below]] = child.children;
      label += next;
      child = below;
    }
    if (child.children.size === 0) {
      for (const item of child.items) box.append(leaf(item, label));
      continue;
    }
    const sums = totals(child);
    const inner = make("div", { class: "inner" });
    const grow = () => {
      if (!inner.hasChildNodes()) fill(inner, child, open, depth + 1, prefix + label);
    };
    const group = make("details", { ontoggle: () => { if (group.open) grow(); } },
      make("summary", {}, make("bdi", {}, shown(label)),
        make("span", { class: "soft" }, whole(sums.count) + (sums.size ? " · " + bytes(sums.size) : ""))), inner);
    group.path = prefix + label;
    group.unfold = () => { grow(); group.open = true; };
    box.append(group);
    // The state of an optimizer has several tensors for each parameter: it is opened on request.
    if (open || (depth < 1 ? !label.startsWith("optimizer/") : sums.count <= 8)) group.unfold();
  }
}

function drawTree(wanted, id) {
  const nav = document.getElementById("tree");
  const open = wanted !== null && wanted.size <= 500;
  nav.replaceChildren(make("a", { class: "leaf", href: link({ n: "" }), "data-key": "" },
    make("span", { class: "name" }, "Overview and log")));
  for (const [kind, title] of Object.entries(groups)) {
    const items = data.items.filter((item) => item.kind === kind && (wanted === null || wanted.has(item.key)));
    if (!items.length) continue;
    const box = make("div", {});
    box.dataset.kind = kind;
    fill(box, grown(items), open, 0, "");
    nav.append(make("h3", {}, title), box);
  }
  if (nav.children.length === 1) nav.append(make("p", { class: "soft" }, 
    id && data.items.some((item) => item.kind === "table") ? "Not a name. As an id of a table: see beside." : "No such name."));
}

// Opens the groups above an item, and marks it.
function markCurrent(item, overview) {
  for (const one of document.querySelectorAll(".leaf[aria-current]")) one.removeAttribute("aria-current");
  const nav = document.getElementById("tree");
  const box = item && nav.querySelector(`[data-kind="${item.kind}"]`);
  let folded = box ? [...box.querySelectorAll("details:not([open])")] : [];
  while (folded.length) {
    const above = folded.filter((group) => item.name.startsWith(group.path));
    for (const group of above) group.unfold();
    folded = above.flatMap((group) => [...group.querySelectorAll("details:not([open])")]);
  }
  const key = item ? item.key : overview ? "" : null;
  for (const one of nav.querySelectorAll(".leaf")) {
    if (one.dataset.key !== key) continue;
    one.setAttribute("aria-current", "true");
    if (item) one.scrollIntoView({ block: "nearest" });
    break;
  }
}

// Arrow keys move over visible items, and open and close groups.
function walk(event) {
  const here = document.activeElement;
  const group = here.tagName === "SUMMARY" ? here.parentElement : null;
  if (event.key === "ArrowRight" && group) group.unfold();
  else if (event.key === "ArrowLeft" && group && group.open) group.open = false;
  else if (event.key === "ArrowLeft") {
    const above = (group || here).parentElement.closest("details");
    if (above) above.querySelector("summary").focus();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const all = [...event.currentTarget.querySelectorAll(".leaf, summary")].filter((one) => one.checkVisibility());
    const next = all[all.indexOf(here) + (event.key === "ArrowDown" ? 1 : -1)];
    if (next) next.focus();
  } else return;
  event.preventDefault();
}
