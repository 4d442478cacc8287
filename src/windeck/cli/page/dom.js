// Elements made of text: data are never parsed as markup.
function make(tag, options, ...children) {
  const space = tag.startsWith("svg:") ? "http://www.w3.org/2000/svg" : null;
  const element = space ? document.createElementNS(space, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

// Escapes control characters, those that change the direction of text, and lone surrogates.
function shown(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu,
    (c) => "\\u" + c.codePointAt(0).toString(16).padStart(4, "0"));
}

function bytes(count) {
  if (count === null) return "?";
  const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
  let unit = 0;
  let scaled = count;
  while (scaled >= 999.5 && unit + 1 < units.length) { scaled /= 1000; unit += 1; }
  if (unit === 0) return count + " B";
  return scaled.toFixed(scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0) + " " + units[unit];
}

function whole(count) {
  return Number(count).toLocaleString("en-US");
}

// Numbers that JSON cannot express are text in the data.
function number(value) {
  if (typeof value !== "number") return shown(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  return String(Number(value.toPrecision(7)));
}

function place(index) {
  return "[" + index.join(", ") + "]";
}

function plural(count, word) {
  return whole(count) + " " + word + (count === 1 ? "" : "s");
}
