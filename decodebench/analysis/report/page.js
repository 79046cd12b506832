// Theme, filters, the sortable table, and the start of everything.
function theme() {
  const button = $("#theme"), names = ["system", "light", "dark"];
  let chosen = "system";
  try { chosen = localStorage.getItem("decodebench-theme") || "system"; } catch { /* a page from a file may have no storage */ }
  const apply = () => {
    if (chosen === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    button.textContent = `Theme: ${chosen}`;
  };
  button.addEventListener("click", () => {
    chosen = names[(names.indexOf(chosen) + 1) % names.length];
    try { localStorage.setItem("decodebench-theme", chosen); } catch { /* then it holds for this visit */ }
    apply();
  });
  apply();
}

// Everything at first where that is little, else one task, and one batch size of it if need be.
const LITTLE = 12;

function filters() {
  const tasks = unique(rows.map((row) => row.task)), batches = unique(rows.map((row) => row.batch_size)).sort((a, b) => a - b);
  if (rows.length > LITTLE && tasks.length > 1) filter.task = tasks[0];
  if (shownRows().length > LITTLE && batches.length > 1) filter.batch = String(batches.at(-1));
  for (const [name, values] of [["task", tasks], ["batch", batches]]) {
    const label = $(`#${name}-filter`), select = label.querySelector("select");
    label.hidden = values.length < 2;
    options(select, [["", "all"], ...values.map((value) => [value, String(value)])], filter[name]);
    select.addEventListener("change", () => { filter[name] = select.value; changed(); });
  }
}

// The number that a cell begins with, or its text; cells without a value go last in either direction.
function sortKey(cell) {
  const text = cell.textContent.trim().replace("−", "-").replace(/^[<+]/, "");
  if (text === "–" || text === "") return null;
  const value = parseFloat(text);
  return Number.isNaN(value) ? text : value;
}

function comparison() {
  const table = $("#comparison-table"), body = table.tBodies[0], original = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const show = () => {
    let before = null;
    for (const row of body.rows) {
      const { task, batch } = row.dataset;
      row.hidden = Boolean((filter.task && task !== filter.task) || (filter.batch && batch !== filter.batch));
      if (row.hidden) continue;
      const sorted = heads.some((head) => head.hasAttribute("aria-sort"));
      row.classList.toggle("group", !sorted && before !== null && before !== `${task} ${batch}`);
      before = `${task} ${batch}`;
    }
  };
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const numeric = original.some((row) => typeof sortKey(row.cells[column]) === "number");
    const order = numeric ? ["descending", "ascending", null] : ["ascending", "descending", null];
    const next = order[(order.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    const sorted = [...original];
    if (next) {
      head.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      sorted.sort((one, other) => {
        const [a, b] = [sortKey(one.cells[column]), sortKey(other.cells[column])];
        if (a === null || b === null) return (a === null) - (b === null);
        if (typeof a === "number" && typeof b === "number") return sign * (a - b);
        return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
      });
    }
    body.replaceChildren(...sorted);
    show();
  }));
  const all = $("#all-columns");
  const columns = () => table.classList.toggle("short", !all.checked);
  all.addEventListener("change", columns);
  columns();
  listeners.push(show);
  show();
  $("#warnings").hidden = !$("#warnings li");
}

theme();
filters();
comparison();
buildPlots($(".plots"));
buildAnswers($(".viewer"));
