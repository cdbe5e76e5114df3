// What moves in a report: tables that can be sorted, the map of all heads with the panel of a head, and passages.
"use strict";

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function dataOf(box) {
  return JSON.parse(box.querySelector('script[type="application/json"]').textContent);
}

// ---- tables: a click on a column's name sorts by it, a second click the other way round

function sortable(table) {
  const body = table.tBodies[0];
  const number = text => (text.trim() === "" ? NaN : Number(text.replace(/[,%+]/g, "").replace("−", "-")));
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = element("button", cell.textContent, { type: "button" });
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const falling = cell.getAttribute("aria-sort") === "ascending";
      const rows = [...body.rows].map(row => [row, row.cells[column].textContent]);
      const numeric = rows.every(([, text]) => text.trim() === "" || !Number.isNaN(number(text)));
      const compare = numeric
        ? (a, b) => number(a) - number(b)
        : (a, b) => a.localeCompare(b, "en", { numeric: true });
      rows.sort(([, a], [, b]) => {
        // cells without a value come last, whichever way round
        if (a.trim() === "" || b.trim() === "") return (a.trim() === "") - (b.trim() === "");
        return falling ? compare(b, a) : compare(a, b);
      });
      [...table.tHead.rows[0].cells].forEach(other => other.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", falling ? "descending" : "ascending");
      body.append(...rows.map(([row]) => row));
    });
  });
}

// ---- the map of heads

function explorer(box) {
  const data = dataOf(box);
  const cells = [...box.querySelectorAll("[data-head]")];
  const width = box.querySelector("tbody tr").cells.length - 1;
  const reading = box.querySelector(".reading");
  const panel = box.querySelector(".panel");
  const say = cell => (reading.textContent = cell.getAttribute("aria-label"));

  box.querySelector("select").addEventListener("change", event => {
    const metric = data.metrics[event.target.value];
    box.querySelector(".meaning").textContent = metric.meaning;
    const [low, high] = box.querySelectorAll(".scale span");
    low.textContent = metric.low;
    high.textContent = metric.high;
    box.querySelector(".scale").classList.toggle("flat", metric.high === "");
    cells.forEach((cell, i) => {
      cell.style.background = data.colors[metric.color[i]];
      cell.setAttribute("aria-label", `${cell.dataset.head}: ${metric.text[i]}${cell.dataset.mark}`);
    });
  });

  const choose = i => {
    cells.forEach(other => other.removeAttribute("aria-current"));
    cells[i].setAttribute("aria-current", "true");
    show(panel, cells[i].dataset.head, data, i);
  };

  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width };
  cells.forEach((cell, i) => {
    cell.addEventListener("mouseenter", () => say(cell));
    cell.addEventListener("focus", () => say(cell));
    cell.addEventListener("click", () => choose(i));
    cell.addEventListener("keydown", event => {
      const row = Math.floor(i / width);
      let next = { Home: row * width, End: row * width + width - 1 }[event.key];
      if (event.key in steps) {
        next = i + steps[event.key];
        const leavesRow = event.key.match(/Left|Right/) && Math.floor(next / width) !== row;
        if (leavesRow || !(next in cells)) return event.preventDefault();
      }
      if (next === undefined) return;
      event.preventDefault();
      cell.tabIndex = -1;
      cells[next].tabIndex = 0;
      cells[next].focus();
    });
  });
  // an example, so that the page shows from the start what a click shows
  if (data.first in data.heads) choose(cells.findIndex(cell => cell.dataset.head === data.first));
}

function show(panel, name, data, i) {
  const head = data.heads[name] ?? { notes: [], maps: [], curves: [] };
  const facts = element("dl");
  for (const [key, value] of head.notes) facts.append(element("dt", key), element("dd", value));
  for (const metric of data.metrics) {
    facts.append(element("dt", metric.name), element("dd", metric.text[i].slice(metric.name.length + 1)));
  }
  const pictures = element("div", "", { class: "pictures" });
  for (const map of head.maps) pictures.append(figure(heat(map, data.colors, name), map.name));
  for (const curve of head.curves) pictures.append(figure(plot(curve, name), `${curve.name}, against ${curve.axis}`));
  panel.replaceChildren(element("h4", name), pictures, facts);
  if (!head.maps.length) panel.append(element("p", "No attention was measured for this head.", { class: "faint" }));
}

function figure(picture, caption) {
  const made = element("figure");
  made.append(picture, element("figcaption", caption));
  return made;
}

function heat(map, colors, name) {
  const canvas = element("canvas", "", { width: map.size, height: map.size, role: "img" });
  canvas.setAttribute("aria-label", `${name}, ${map.name}: queries from top to bottom, keys from left to right`);
  const ink = canvas.getContext("2d");
  const cells = atob(map.cells);
  for (let row = 0, at = 0; row < map.size; row++) {
    for (let key = 0; key <= row; key++, at++) {
      ink.fillStyle = colors[cells.charCodeAt(at)];
      ink.fillRect(key, row, 1, 1);
    }
  }
  return canvas;
}

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// a line on a logarithmic axis of positions, with its ends written at the axes
function plot(curve, name) {
  const [W, H, left, right, top, bottom] = [170, 110, 48, 4, 4, 18];
  const known = curve.y.filter(y => y !== null);
  let [low, high] = [Math.min(...known), Math.max(...known)];
  if (low === high) [low, high] = [low - 1, high + 1];
  const reach = Math.log(curve.x[curve.x.length - 1]) || 1;
  const at = (x, y) => [
    left + ((W - left - right) * Math.log(x)) / reach,
    top + ((H - top - bottom) * (high - y)) / (high - low),
  ];
  const points = curve.x.map((x, i) => [x, curve.y[i]]).filter(([, y]) => y !== null).map(([x, y]) => at(x, y));
  const drawn = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${name}, ${curve.name}` });
  const line = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  const text = (x, y, anchor, value) => svg("text", { x, y, "text-anchor": anchor }, value);
  // next to the other end of the axis, less than a thousandth is nothing
  const isNothing = value => Math.abs(value) < Math.max(Math.abs(low), Math.abs(high)) / 1000;
  const short = value => {
    if (isNothing(value)) return "0";
    return Math.abs(value) < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(2)));
  };
  drawn.append(
    svg("path", { d: `M${left} ${top}V${H - bottom}H${W - right}`, class: "axis" }),
    svg("path", { d: line, class: "line" }),
    text(left - 4, top + 8, "end", short(high)),
    text(left - 4, H - bottom, "end", short(low)),
    text(left, H - 4, "start", "1"),
    text(W - right, H - 4, "end", Math.round(curve.x[curve.x.length - 1]).toLocaleString("en")),
  );
  return drawn;
}

// ---- a passage: the tokens before a chosen one, coloured by what they give to it

function passage(box) {
  const data = dataOf(box);
  const lines = [...box.querySelectorAll(".words")].map(line => [...line.children]);
  const choice = box.querySelector("select"), reading = box.querySelector(".reading");
  const count = lines[0].length;
  let query = count - 1;
  const cells = {};
  // the causal half of a matrix, row by row, as little-endian 16-bit integers
  const matrix = (entry, measure) => {
    const key = `${entry},${measure}`;
    if (!(key in cells)) {
      const bytes = Uint8Array.from(atob(data.weights[entry][measure]), letter => letter.charCodeAt(0));
      const view = new DataView(bytes.buffer);
      cells[key] = Float64Array.from({ length: bytes.length / 2 }, (_, i) => {
        const value = view.getInt16(2 * i, true);
        return value === -32768 ? NaN : value / data.scale;
      });
    }
    return cells[key];
  };
  const value = (measure, token) =>
    token > query ? NaN : matrix(choice.value, measure)[(query * (query + 1)) / 2 + token];
  const percent = share => (Number.isNaN(share) ? "unknown" : `${(100 * share).toFixed(1)} %`);
  const say = token => {
    const word = `"${lines[0][token].textContent}"`;
    if (token > query) return (reading.textContent = `${word} comes after the chosen token.`);
    const parts = data.measures.map((name, measure) => `${name} ${percent(value(measure, token))}`);
    reading.textContent = `${word} gives to "${lines[0][query].textContent}": ${parts.join(", ")}`;
  };
  const draw = () => lines.forEach((line, measure) => line.forEach((cell, token) => {
    cell.style.setProperty("--share", value(measure, token) || 0);
    cell.classList.toggle("later", token > query);
    if (token === query) cell.setAttribute("aria-current", "true");
    else cell.removeAttribute("aria-current");
  }));
  choice.addEventListener("change", draw);
  lines.forEach(line => line.forEach((cell, token) => {
    cell.addEventListener("mouseenter", () => say(token));
    cell.addEventListener("focus", () => say(token));
    cell.addEventListener("click", () => { query = token; draw(); say(token); });
    cell.addEventListener("keydown", event => {
      const next = { ArrowLeft: token - 1, ArrowRight: token + 1, Home: 0, End: count - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      if (!(next in line)) return;
      cell.tabIndex = -1;
      line[next].tabIndex = 0;
      line[next].focus();
    });
  }));
  draw();
}

document.querySelectorAll(".scroll > table").forEach(sortable);
document.querySelectorAll(".explorer").forEach(explorer);
document.querySelectorAll(".passage").forEach(passage);
