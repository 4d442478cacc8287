// Embedding tables: first rows, frequencies of ids, and look-up of an id.
function tableRows(item, rows, asked) {
  const heads = ["id", "frequency", "version", "seen", "row"];
  const width = Math.max(...rows.map((row) => (row.values || []).length), 0);
  for (let i = 0; i < width; i += 1) heads.push(String(i));
  return make("div", { class: "scroll", tabindex: "0" }, make("table", {},
    make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, rows.map((row) => make("tr", {}, make("th", { scope: "row" }, row.id),
      [row.frequency, row.version, row.seen].map((value) => cell(value, false)),
      make("td", {}, row.values ? "yes" : "counted"),
      (row.values || []).map((value) => cell(value, asked && asked(value))))))));
}

function lookup(item) {
  const answer = make("div", { "aria-live": "polite" });
  const input = make("input", { type: "text", inputmode: "numeric", id: "id", placeholder: "id", oninput: () => {
    const wanted = input.value.trim();
    const found = item.head.filter((row) => row.id === wanted);
    answer.replaceChildren(...(!wanted ? [] : found.length ? [tableRows(item, found)]
      : isId(wanted) ? [notShown(item, wanted)] : [make("p", { class: "soft" }, "An id is a whole number.")]));
  } });
  return make("div", { id: "lookup" }, make("label", { for: "id" }, "Id "), input, answer);
}

function showTable(item, asked) {
  const out = [make("h2", {}, make("bdi", {}, shown(item.name))),
    facts([["rows", whole(item.rows) + " of " + item.dim + " " + item.dtype],
      ["only counted", whole(item.counted)], ["optimizer slots", String(item.slots)],
      ["bytes", bytes(item.bytes)], ["clock", String(item.clock)],
      ["configuration", make("code", {}, shown(item.config))],
      ["links", item.links.map((one) => `generation ${one.generation}: ${plural(one.rows, "row")}` +
        (one.since === -1 ? "" : `, ${whole(one.dead)} removed, since clock ${one.since}`)).join("; ")]])];
  if (item.note) out.push(make("p", { class: "note" }, shown(item.note)));
  if (item.stats) out.push(make("h3", {}, "Statistics of embeddings"), statistics(item.stats));
  if (item.frequencies) {
    out.push(make("h3", {}, "How often ids were looked up"));
    out.push(make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, make("th", {}, "frequency"), make("th", {}, "ids"), make("th", {}, ""))),
      make("tbody", {}, item.frequencies.map(([low, high, count, share]) => make("tr", {},
        make("th", { scope: "row" }, low === high ? whole(low) : whole(low) + " to " + whole(high)),
        make("td", {}, whole(count)),
        make("td", { class: "text" }, make("svg:svg", { viewBox: "0 0 200 10", width: "200", height: "10" },
          make("svg:rect", { width: (share ? Math.max(1, 200 * share) : 0).toFixed(1), height: "10" })))))))));
  }
  if (item.head.length) {
    out.push(make("h3", {}, "Look up a row"), lookup(item));
    out.push(make("h3", {}, `The first ${plural(item.head.length, "id")}`));
    out.push(tableRows(item, item.head, asked));
  }
  return out;
}
