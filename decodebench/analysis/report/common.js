// What all parts of the page use. Text from records goes into the page as text nodes only, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.rows.map((row, place) => ({ ...row, place }));
const filter = { task: "", batch: "" };
const listeners = [];
const changed = () => listeners.forEach((listener) => listener());
const shownRows = () => rows.filter((row) =>
  (!filter.task || row.task === filter.task) && (!filter.batch || String(row.batch_size) === filter.batch));

const $ = (selector) => document.querySelector(selector);
const unique = (values) => [...new Set(values)];
const known = (value) => value !== null && value !== undefined;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function put(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else if (name === "color") node.style.color = value;
    else if (known(value) && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter(known));
  return node;
}
const el = (tag, properties = {}, ...children) => put(document.createElement(tag), properties, children);
const svg = (tag, properties = {}, ...children) =>
  put(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

function options(select, values, chosen) {
  select.replaceChildren(...values.map(([value, text]) =>
    el("option", { value, selected: String(value) === String(chosen) }, text)));
  return select;
}

// Three significant digits, never in scientific notation.
const number = (value) => (known(value) ? value.toFixed(Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2) : "–");
const percent = (value) => (known(value) ? `${(100 * value).toFixed(1)} %` : "–");
const between = (low, high, write) => (known(low) && known(high) ? ` [${write(low)}, ${write(high)}]` : "");

const tip = $("#tip");
function showTip(target, title, lines) {
  tip.replaceChildren(el("b", {}, title), lines.filter(Boolean).join("\n"));
  tip.hidden = false;
  const box = target.getClientRects()[0], own = tip.getBoundingClientRect();
  const above = box.top - own.height - 10;
  tip.style.left = `${clamp(box.left + box.width / 2 - own.width / 2, 8, innerWidth - own.width - 8)}px`;
  tip.style.top = `${above > 8 ? above : Math.min(box.bottom + 10, innerHeight - own.height - 8)}px`;
  target.setAttribute("aria-describedby", "tip");
}
function hideTip() {
  tip.hidden = true;
  document.querySelectorAll("[aria-describedby=tip]").forEach((node) => node.removeAttribute("aria-describedby"));
}
addEventListener("scroll", hideTip, { passive: true, capture: true });
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
