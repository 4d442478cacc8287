// Searching names, and the values that are on the page.
const most = 200;

function condition(text) {
  const simple = text.trim().toLowerCase();
  if (simple === "nan") return { text: simple, holds: (value) => value === "nan" };
  if (simple === "inf") return { text: simple, holds: (value) => value === "inf" || value === "-inf" };
  const found = simple.match(/^(abs|value)?\s*(<=|>=|==|!=|=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)$/);
  if (!found) return null;
  const [, subject, sign, digits] = found;
  const limit = Number(digits);
  const compare = { "<": (x) => x < limit, "<=": (x) => x <= limit, ">": (x) => x > limit, ">=": (x) => x >= limit,
    "=": (x) => x === limit, "==": (x) => x === limit, "!=": (x) => x !== limit }[sign];
  return { text: `${subject || "value"} ${sign === "=" ? "==" : sign} ${digits}`, holds: (value) => {
    const real = value === "inf" ? Infinity : value === "-inf" ? -Infinity : typeof value === "boolean" ? Number(value)
      : typeof value === "string" && /^-?\d+$/.test(value) ? Number(value) : value;
    if (typeof real !== "number") return false;
    return compare(subject === "abs" ? Math.abs(real) : real);
  } };
}

function spot(sample, r, c) {
  return sample.flat ? [sample.at[r][0] + c] : [...sample.at[r], sample.first + c];
}

// Values on the page that match: of tensors with their index, of tables with their id.
function* matches(holds) {
  for (const item of data.items) {
    if (item.kind === "tensor" && item.own) {
      const told = new Set();
      for (const found of tensorMatches(item, holds)) {
        const key = place(found.index);
        if (!told.has(key)) { told.add(key); yield { item, where: key, value: found.value }; }
      }
    }
    if (item.kind === "table") {
      for (const row of item.head) {
        for (const [i, value] of (row.values || []).entries()) {
          if (holds(value)) yield { item, where: `id ${row.id} [${i}]`, value };
        }
      }
    }
    if (item.kind === "value" && item.number !== null && holds(item.number)) {
      yield { item, where: "", value: item.number };
    }
  }
}

function* tensorMatches(item, holds) {
  if (item.findings) {
    for (const [name, value] of [["nan", "nan"], ["inf", "inf"]]) {
      if (item.findings[name] && holds(value)) for (const index of item.findings[name].at) yield { index, value };
    }
    for (const [index, value] of item.findings.largest) if (holds(value)) yield { index, value };
  }
  for (const sample of item.samples) {
    for (const [r, row] of sample.rows.entries()) {
      for (const [c, value] of row.entries()) if (holds(value)) yield { index: spot(sample, r, c), value };
    }
  }
}

function named(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return data.items.filter((item) => words.every((word) => item.name.toLowerCase().includes(word)));
}

function isId(text) {
  return /^-?\d+$/.test(text.trim());
}

function notShown(item, id) {
  return make("p", { class: "soft" }, `The id ${id} is not among the ${whole(item.head.length)} rows of this table on this page. ` +
    `In the store: windeck view URL row '${shown(item.name)}' ${id}`);
}

function showSearch(text, asked) {
  const names = named(text);
  const out = [make("h2", {}, "Search: ", make("bdi", {}, shown(text)))];
  const id = text.trim();
  for (const item of isId(id) ? data.items.filter((one) => one.kind === "table") : []) {
    const found = item.head.filter((row) => row.id === id);
    out.push(make("h3", {}, "Row of ", make("a", { href: link({ n: item.key }) }, shown(item.name))),
      found.length ? tableRows(item, found) : notShown(item, id));
  }
  if (!asked || names.length) {
    out.push(make("h3", { id: "names" }, plural(names.length, "name")));
    out.push(make("div", { class: "results" }, names.slice(0, most).map((item) => leaf(item, item.name))));
    if (names.length > most) out.push(make("p", { class: "soft" }, `The first ${most} are shown; the tree has all.`));
  }
  if (!asked) return out;
  let count = 0;
  const body = [];
  for (const match of matches(asked.holds)) {
    count += 1;
    if (count > most) continue;
    body.push(make("tr", {}, make("td", { class: "text" }, make("a", { href: link({ n: match.item.key }) }, make("bdi", {}, shown(match.item.name)))),
      make("th", { scope: "row" }, match.where), cell(match.value, false)));
  }
  out.push(make("h3", { id: "values" }, plural(count, "value") + " on this page"));
  if (body.length) out.push(make("div", { class: "scroll", tabindex: "0" }, make("table", {}, make("tbody", {}, body))));
  if (count > most) out.push(make("p", { class: "soft" }, `The first ${most} are shown.`));
  out.push(make("p", { class: "note" }, "The page holds whole small tensors, samples of large ones, their largest values, " +
    "and places of NaN and infinities. All values are searched by: windeck view URL find --where '" + shown(asked.text) + "'"));
  return out;
}
