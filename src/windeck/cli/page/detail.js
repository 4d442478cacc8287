// Details of one tensor, table or value.
function facts(pairs) {
  return make("dl", {}, pairs.filter((pair) => pair[1] !== null)
    .map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function statistics(stats) {
  const infinite = stats.positive_infinite + stats.negative_infinite;
  const cells = [["count", whole(stats.count)], ["min", stats.min], ["max", stats.max], ["mean", stats.mean],
    ["std", stats.std], ["largest magnitude", stats.abs_max], ["zeros", whole(stats.zeros)],
    ["NaN", whole(stats.nan), stats.nan], ["infinite", whole(infinite), infinite]];
  return make("div", { class: "stats" }, cells.filter((cell) => cell[1] !== null).map(([name, value, bad]) =>
    make("div", { class: bad ? "stat bad" : "stat" }, make("b", {}, number(value)), make("span", {}, name))));
}

// For bins of the same width, the data have only the first and the last edge.
function evened(edges, count) {
  if (edges.length !== 2) return edges;
  const [low, high] = edges;
  return Array.from({ length: count + 1 }, (_, i) => low * (1 - i / count) + high * (i / count));
}

function histogram(ends, counts, caption) {
  const edges = evened(ends, counts.length);
  const width = 720, height = 190, left = 8, bottom = 24, top = 16;
  const most = Math.max(...counts, 1);
  const step = (width - 2 * left) / counts.length;
  const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": caption });
  const base = height - bottom;
  counts.forEach((count, i) => {
    if (!count) return;
    const tall = Math.max(1.5, (base - top) * count / most);  // a bin that is not empty is visible
    const bar = make("svg:rect", { x: (left + i * step).toFixed(2), y: (base - tall).toFixed(2),
      width: Math.max(step - 1, 0.6).toFixed(2), height: tall.toFixed(2) });
    const end = i === counts.length - 1 ? "]" : ")";
    bar.append(make("svg:title", {}, `[${number(edges[i])}, ${number(edges[i + 1])}${end}: ${whole(count)}`));
    svg.append(bar);
  });
  svg.append(make("svg:line", { x1: left, x2: width - left, y1: base, y2: base }));
  const low = edges[0], high = edges[edges.length - 1];
  const label = (x, y, anchor, text) => svg.append(make("svg:text", { x, y, "text-anchor": anchor }, text));
  label(left, height - 8, "start", number(low));
  label(width - left, height - 8, "end", number(high));
  if (low < 0 && high > 0) {
    const zero = left + (width - 2 * left) * (0 - low) / (high - low);
    if (zero > 90 && zero < width - 90) label(zero, height - 8, "middle", "0");
  }
  label(width - left, 11, "end", "most in a bin: " + whole(most));
  return make("figure", {}, svg, make("figcaption", {}, caption));
}

function cell(value, hit) {
  const odd = value === "nan" || value === "inf" || value === "-inf";
  const classes = [hit ? "hit" : "", odd ? "odd" : ""].join(" ").trim();
  return make("td", classes ? { class: classes } : {}, number(value));
}

function grid(sample, asked) {
  const columns = Math.max(...sample.rows.map((row) => row.length), 0);
  const head = make("tr", {}, make("th", {}, ""));
  for (let i = 0; i < columns; i += 1) head.append(make("th", { scope: "col" }, String((sample.flat ? 0 : sample.first) + i)));
  const body = sample.rows.map((row, r) => make("tr", {},
    make("th", { scope: "row" }, sample.flat ? String(sample.at[r][0]) : place(sample.at[r])),
    row.map((value) => cell(value, asked && asked(value)))));
  return make("div", { class: "scroll", tabindex: "0" },
    make("table", {}, make("thead", {}, head), make("tbody", {}, body)));
}

function findings(item) {
  const out = [];
  for (const [name, title] of [["nan", "Where NaN is"], ["inf", "Where infinities are"]]) {
    const found = item.findings && item.findings[name];
    if (!found || !found.count) continue;
    out.push(make("h3", {}, title));
    const rest = found.count > found.at.length ? ` and ${whole(found.count - found.at.length)} more` : "";
    out.push(make("p", { class: "mono found" }, found.at.map(place).join("  ") + rest));
  }
  if (item.findings && item.findings.largest.length) {
    out.push(make("h3", {}, "Largest magnitudes"));
    out.push(make("div", { class: "scroll" }, make("table", {}, make("tbody", {},
      item.findings.largest.map(([index, value]) =>
        make("tr", {}, make("th", { scope: "row" }, place(index)), cell(value, false)))))));
  }
  return out;
}

function showTensor(item, asked) {
  const out = [make("h2", {}, make("bdi", {}, shown(item.name))),
    facts([["dtype", item.dtype], ["shape", place(item.shape)], ["elements", whole(item.elements)],
      ["bytes", item.bytes === null ? "?" : whole(item.bytes) + " (" + bytes(item.bytes) + ")"],
      ["parts", item.parts > 1 ? plural(item.parts, "part") + " of several writers" : null],
      ["data", item.own ? null : "shared with " + shown(item.data)]])];
  if (item.note) out.push(make("p", { class: "note" }, shown(item.note)));
  if (item.stats) {
    out.push(make("h3", {}, "Statistics"), statistics(item.stats));
    if (item.dtype.startsWith("complex")) out.push(make("p", { class: "soft" }, "Of moduli."));
  }
  if (item.histogram) {
    out.push(make("h3", {}, "Histogram"),
      histogram(item.histogram.edges, item.histogram.counts, "All finite values, in even bins."));
  }
  out.push(...findings(item));
  if (item.samples.length) {
    out.push(make("h3", {}, item.complete ? "All values" : "Some of the values"));
    for (const sample of item.samples) {
      if (!item.complete) out.push(make("p", { class: "soft" }, sample.label));
      out.push(grid(sample, asked));
    }
  }
  return out;
}

function showValue(item) {
  return [make("h2", {}, make("bdi", {}, shown(item.name))),
    facts([["type", item.type], ["value", make("code", {}, shown(item.value))]])];
}
