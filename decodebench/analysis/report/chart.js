// Two charts that all plots are made of: points and lines over two axes, and rows of marks over one.
const MARGIN = { top: 14, right: 24, bottom: 42, left: 48 };
const HEIGHT = 330, ROW = 24;

const pen = document.createElement("canvas").getContext("2d"), typeface = getComputedStyle(document.body).fontFamily;
function measure(content, kind = "name") {
  pen.font = kind === "name" ? `600 12px ${typeface}` : `10.5px ${typeface}`;
  return pen.measureText(content).width;
}
const longest = (some) => Math.max(...some.map((one) => measure(one.name)));

function ticks(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((value) => value >= raw * 0.999);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found.map((value) => Number(value.toPrecision(12)));
}

function range(values, zero) {
  const low = zero ? Math.min(0, ...values) : Math.min(...values), high = Math.max(...values);
  const pad = (high - low || Math.abs(high) || 1) * 0.07;
  return [zero && low === 0 ? 0 : low - pad, high + pad];
}

const text = (x, y, anchor, content, more = {}) => svg("text", { x, y, "text-anchor": anchor, ...more }, content);
const nothing = (host) => host.replaceChildren(el("p", { class: "nothing" }, "No run here has these numbers."));

// A mark with its numbers on hover and focus. One mark of a chart is reached by Tab, the others by arrow keys.
function withTip(node, title, lines) {
  const show = () => showTip(node, title, lines);
  return put(node, {
    role: "img", tabindex: -1, "aria-label": [title, ...lines].filter(Boolean).join(", "),
    onmouseenter: show, onmouseleave: hideTip, onfocus: show, onblur: hideTip,
  }, []);
}

function finish(host, root, marks) {
  marks[0]?.setAttribute("tabindex", 0);
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const at = marks.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    marks[at].setAttribute("tabindex", -1);
    const next = marks[(at + step + marks.length) % marks.length];
    next.setAttribute("tabindex", 0);
    next.focus();
  });
  host.replaceChildren(root);
}

// spec: lines [{name, color, ink, dash, base, points: [{x, y, low, high, label, title, lines}]}], xName, yName, zero,
// xTicks (values that stand at even distances), rule (a horizontal line), front (points), column (names in a column)
function drawLines(host, spec) {
  const width = Math.max(host.clientWidth, 280), lines = spec.lines.filter((line) => line.points.length);
  if (!lines.length) return nothing(host);
  const points = lines.flatMap((line) => line.points);
  const right = spec.column ? Math.min(longest(lines) + 18, width * 0.45) : MARGIN.right;
  const inner = { w: width - MARGIN.left - right, h: HEIGHT - MARGIN.top - MARGIN.bottom };
  const [x0, end] = spec.xTicks ? [-0.15, spec.xTicks.length - 0.9] : range(points.map((p) => p.x));
  const x1 = spec.xTicks || spec.column ? end : end + 0.16 * (end - x0); // room for names
  const [y0, y1] = range(points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]).concat(spec.rule ?? []), spec.zero);
  const X = (value) => MARGIN.left + (((spec.xTicks ? spec.xTicks.indexOf(value) : value) - x0) / (x1 - x0)) * inner.w;
  const Y = (value) => MARGIN.top + (1 - (value - y0) / (y1 - y0)) * inner.h;
  const path = (some) => some.map((p, i) => `${i ? "L" : "M"}${X(p.x).toFixed(1)},${Y(p.y).toFixed(1)}`).join("");
  const across = (value, kind) => svg("line", { class: kind, x1: MARGIN.left, x2: width - right, y1: Y(value), y2: Y(value) });
  const root = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "group", "aria-label": `${spec.yName} against ${spec.xName}` });

  for (const value of ticks(y0, y1, 5)) root.append(across(value, "grid"), text(MARGIN.left - 8, Y(value) + 4, "end", String(value)));
  for (const value of spec.xTicks || ticks(x0, x1, width < 420 ? 4 : 6)) root.append(text(X(value), HEIGHT - MARGIN.bottom + 18, "middle", String(value)));
  root.append(text(MARGIN.left + inner.w / 2, HEIGHT - 5, "middle", spec.xName, { class: "axis" }));
  if (known(spec.rule)) root.append(across(spec.rule, "zero"));
  if (spec.front?.length > 1) root.append(svg("path", { class: "front", d: path(spec.front) }));
  const marks = [];
  for (const line of lines) {
    const group = svg("g", { color: line.color });
    if (line.points.length > 1) group.append(svg("path", { class: "line", d: path(line.points), "stroke-dasharray": line.dash }));
    for (const p of line.points) {
      if (known(p.low) && known(p.high)) group.append(svg("line", { class: "whisker", x1: X(p.x), x2: X(p.x), y1: Y(p.low), y2: Y(p.high) }));
    }
    for (const p of line.points) {
      marks.push(withTip(svg("circle", { class: "mark", cx: X(p.x), cy: Y(p.y), r: line.base ? 6.5 : 5 }), p.title, p.lines));
      group.append(marks.at(-1));
    }
    root.append(group);
  }
  if (spec.column) nameColumn(root, lines, width - right + 14, Y);
  else nameInPlace(root, lines, X, Y, width);
  finish(host, root, marks);
}

// Names in a column at the ends of lines, pushed apart where they would cover each other.
function nameColumn(root, lines, left, Y) {
  const names = lines.map((line) => ({ line, y: Y(line.points.at(-1).y) })).sort((a, b) => a.y - b.y);
  for (let at = 1; at < names.length; at++) names[at].y = Math.max(names[at].y, names[at - 1].y + 14);
  let floor = HEIGHT - MARGIN.bottom + 6;
  for (const name of [...names].reverse()) { name.y = Math.min(name.y, floor); floor = name.y - 14; }
  for (const { line, y } of names) root.append(text(left, y + 4, "start", line.name, { class: "name", color: line.ink, "aria-hidden": true }));
}

// Names and values beside their points, where they cover no other; values without room are left out.
function nameInPlace(root, lines, X, Y, width) {
  const points = lines.flatMap((line) => line.points);
  const taken = points.map((p) => ({ x: X(p.x) - 5, y: Y(p.y) - 5, w: 10, h: 10 })), written = [];
  const meets = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
  const fits = (box) => box.x >= 0 && box.x + box.w <= width && box.y >= 0 && box.y + box.h <= HEIGHT - MARGIN.bottom && !taken.some((other) => meets(box, other));
  const write = (p, content, kind, color) => {
    const x = X(p.x), y = Y(p.y), w = measure(content, kind) + 4, h = kind === "name" ? 14 : 11;
    if (written.some((other) => other.content === content && Math.hypot(other.x - x, other.y - y) < 10)) return;
    const spots = [[x + 9, y - h / 2], [x - w / 2, y - h - 8], [x - w / 2, y + 8], [x + 8, y - h - 6], [x + 8, y + 6], [x - w - 9, y - h / 2], [x - w - 6, y - h - 8], [x - w - 6, y + 8], [x - w / 2, y - h - 22], [x - w / 2, y + 22]];
    const box = spots.map(([left, top]) => ({ x: left, y: top, w, h })).find(fits);
    if (!box) return;
    taken.push(box);
    written.push({ content, x, y });
    root.append(text(box.x + 2, box.y + h - 3, "start", content, { class: kind, color, "aria-hidden": true }));
  };
  for (const line of lines) write(line.points.at(-1), line.name, "name", line.ink);
  for (const line of lines) for (const p of line.points) if (p.label) write(p, p.label, "value", line.ink);
}

// spec: rows [{name, color, base, bars: [{from, to, thick, fill, label, title, lines}], dots: [{x, title, lines}]}], xName, most
function drawRows(host, spec) {
  if (!spec.rows.length) return nothing(host);
  const width = Math.max(host.clientWidth, 280), height = spec.rows.length * ROW + MARGIN.bottom + 6;
  const left = Math.min(longest(spec.rows) + 14, width * 0.45), most = spec.most || 1;
  const X = (value) => left + (value / most) * (width - left - MARGIN.right);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": spec.xName });
  for (const value of ticks(0, most, width < 420 ? 3 : 5)) {
    root.append(svg("line", { class: "grid", x1: X(value), x2: X(value), y1: 2, y2: height - MARGIN.bottom + 4 }),
      text(X(value), height - MARGIN.bottom + 20, "middle", String(value)));
  }
  root.append(text((left + width - MARGIN.right) / 2, height - 4, "middle", spec.xName, { class: "axis" }));
  const marks = [];
  spec.rows.forEach((row, place) => {
    const middle = place * ROW + ROW / 2 + 2, group = svg("g", { color: row.color });
    let name = row.name;
    while (name.length > 1 && measure(name) > left - 10) name = `${name.slice(0, -2)}…`;
    group.append(text(left - 10, middle + 4, "end", name, { class: "name", color: row.ink }));
    for (const bar of row.bars) {
      const shape = svg("rect", { class: "bar", x: X(bar.from), width: Math.max(X(bar.to) - X(bar.from), 0.5), y: middle - bar.thick / 2, height: bar.thick, rx: 2 });
      put(shape, { color: bar.fill }, []);
      if (bar.title) marks.push(withTip(shape, bar.title, bar.lines));
      group.append(shape);
      if (bar.label && X(bar.to) - X(bar.from) > 14) group.append(text((X(bar.from) + X(bar.to)) / 2, middle + 4, "middle", bar.label, { class: "inside", color: bar.ink, "aria-hidden": true }));
    }
    for (const dot of row.dots || []) {
      marks.push(withTip(svg("circle", { class: "mark", cx: X(dot.x), cy: middle, r: 5.5 }), dot.title, dot.lines));
      group.append(marks.at(-1));
    }
    root.append(group);
  });
  finish(host, root, marks);
}
