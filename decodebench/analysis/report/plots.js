// The plots. Each says what is drawn of the rows that the filters leave.
const families = unique(rows.filter((row) => !row.is_baseline).map((row) => row.family));
const hidden = new Set(); // series and values of τ
const DASHES = [null, "7 4", "2 4", "9 3 2 3"];
const seriesOf = (row) => (row.is_baseline ? row.label : row.series);
const tauOf = (row) => (known(row.tau) && !row.is_baseline ? `τ=${row.tau}` : "");
const drawn = (row) => !hidden.has(seriesOf(row)) && !hidden.has(tauOf(row));
const severalTasks = (some) => unique(some.map((row) => row.task)).length > 1;
const severalBatches = (some) => unique(some.map((row) => row.batch_size)).length > 1;
const where = (row) => `${row.task}, batch ${row.batch_size}`;

// A colour for each method and block size, dashes for each cache mode, and paler ones for higher τ where it has no axis.
function look(row, graded) {
  if (row.is_baseline) return { color: "var(--ink)", ink: "var(--ink)", base: true };
  const alike = rows.filter((other) => other.family === row.family && !other.is_baseline);
  const series = unique(alike.map((other) => other.series)), taus = unique(alike.map((other) => other.tau)).sort((a, b) => b - a);
  const ink = `var(--c${families.indexOf(row.family) % 8})`;
  const strength = taus.length > 1 ? Math.round(40 + (60 * taus.indexOf(row.tau)) / (taus.length - 1)) : 100;
  return { ink, color: graded ? `color-mix(in oklch, ${ink} ${strength}%, var(--card))` : ink, dash: DASHES[series.indexOf(row.series) % DASHES.length] };
}

// What of task and batch size tells these rows apart.
function nameOf(row, some, name, along) {
  return [name, severalTasks(some) && row.task, along !== "batch" && severalBatches(some) && `bs ${row.batch_size}`].filter(Boolean).join(" · ");
}

// Rows as lines along τ or along the batch size.
function linesOf(some, along, point) {
  const groups = new Map();
  for (const row of some) {
    const made = point(row), name = nameOf(row, some, along === "tau" ? seriesOf(row) : row.label, along);
    if (!made) continue;
    if (!groups.has(name)) groups.set(name, { name, ...look(row, along !== "tau"), points: [] });
    groups.get(name).points.push(made);
  }
  return [...groups.values()];
}

const SPEEDS = {
  speedup: "speed-up",
  tokens_per_pass: "tokens per pass",
  tokens_per_second: "tokens/s",
};
const QUALITIES = { score: "score (%)", equal_outputs: "outputs equal (%)", equal_tokens: "tokens equal (%)", ar_logprob: "log-probability (nats)" };

const facts = (row) => [
  where(row),
  known(row.score) && `score ${percent(row.score)}${between(row.score_low, row.score_high, percent)}`,
  known(row.difference) && `difference ${(100 * row.difference).toFixed(1)} points${row.significant ? "" : ", not significant"}`,
  known(row.equal_outputs) && `${percent(row.equal_outputs)} of outputs equal, ${percent(row.equal_tokens)} of tokens`,
  known(row.ar_logprob) && `log-probability of a token ${row.ar_logprob.toFixed(3)}`,
  known(row.speedup) && `${number(row.speedup)}× the baseline${between(row.speedup_low, row.speedup_high, number)}`,
  `${number(row.tokens_per_pass)} tokens per pass, ${number(row.tokens_per_second)} tokens/s`,
];

// Points that no other beats in both.
function paretoFront(points) {
  const best = [];
  for (const p of [...points].sort((a, b) => b.x - a.x || b.y - a.y)) if (!best.length || p.y > best.at(-1).y) best.push(p);
  return best;
}

const PLOTS = [
  {
    id: "frontier", title: "Speed and quality", axes: { x: SPEEDS, y: QUALITIES },
    caption: "Numbers at the points: τ. Grey band: what nothing else beats in both. Bars: 95 % intervals.",
    draw(host, some, { x, y }) {
      const quality = (row) => (y.startsWith("equal") && row.is_baseline ? 1 : row[y]);
      const factor = y === "ar_logprob" ? 1 : 100, times = (value) => (known(value) ? factor * value : null);
      const lines = linesOf(some, "tau", (row) => known(row[x]) && known(quality(row)) && {
        x: row[x], y: times(quality(row)), low: times(row[`${y}_low`]), high: times(row[`${y}_high`]),
        label: known(row.tau) ? String(row.tau) : "", title: row.label, lines: facts(row),
      });
      const front = severalTasks(some) || severalBatches(some) ? [] : paretoFront(lines.flatMap((line) => line.points));
      drawLines(host, { lines, front, xName: SPEEDS[x], yName: QUALITIES[y] });
    },
  },
  {
    id: "batch", title: "Speed-up and batch size", caption: "tokens/s ÷ tokens/s of the baseline at the same batch size. Bars: 95 % intervals.",
    draw(host) {
      const some = rows.filter((row) => (!filter.task || row.task === filter.task) && known(row.speedup) && drawn(row));
      const lines = linesOf(some, "batch", (row) => ({ x: row.batch_size, y: row.speedup, low: row.speedup_low, high: row.speedup_high, title: row.label, lines: facts(row) }));
      drawLines(host, { lines, xName: "batch size", yName: "speed-up", xTicks: unique(some.map((row) => row.batch_size)).sort((a, b) => a - b), rule: 1, zero: true, column: true });
    },
  },
  {
    id: "acceptance", title: "Tokens committed in a pass", caption: "Of all passes that a request took part in, those that commit 1, 2, … tokens.",
    draw(host, some) {
      const most = Math.max(2, ...some.flatMap((row) => Object.keys(row.committed).map(Number)));
      const made = some.filter((row) => Object.keys(row.committed).length).map((row) => {
        const total = Object.values(row.committed).reduce((sum, count) => sum + count, 0);
        let from = 0;
        const bars = Object.entries(row.committed).map(([count, passes]) => {
          const share = passes / total, strength = (Number(count) - 1) / (most - 1);
          const bar = {
            from: 100 * from, to: 100 * (from + share), thick: 17, label: count, title: row.label,
            fill: `color-mix(in oklch, var(--accent) ${Math.round(14 + 86 * strength)}%, var(--card))`, ink: strength > 0.45 ? "var(--card)" : "var(--ink)",
            lines: [where(row), `${count} ${count === "1" ? "token" : "tokens"}: ${percent(share)} of ${total} passes`],
          };
          from += share;
          return bar;
        });
        return { name: nameOf(row, some, row.label), ...look(row), bars };
      });
      drawRows(host, { rows: made, xName: "share of passes (%)", most: 100 });
    },
  },
  {
    id: "latency", title: "Latency of requests", caption: "Dot: median. Thick: the middle half. Thin: 5 to 95 % of the requests.",
    draw(host, some) {
      const made = some.filter((row) => row.latency.length).map((row) => {
        const at = (share) => row.latency[Math.round(share * (row.latency.length - 1))];
        const lines = [where(row), ...[0.5, 0.95, 1].map((share) => `${100 * share} % within ${number(at(share))} s`)], own = look(row);
        const bars = [[0.05, 0.95, 3], [0.25, 0.75, 9]].map(([low, high, thick]) => ({ from: at(low), to: at(high), thick, fill: `color-mix(in oklch, ${own.color} 45%, var(--card))` }));
        return { name: nameOf(row, some, row.label), ...own, bars, dots: [{ x: at(0.5), title: row.label, lines }], high: at(0.95) };
      });
      drawRows(host, { rows: made, xName: "seconds", most: Math.max(...made.map((row) => row.high)) });
    },
  },
  {
    id: "calibration", title: "Confidence and truth", needs: (row) => row.calibration.length,
    caption: "Of tokens taken with some confidence, those that AR would have taken after the same text. Bars: 95 % intervals.",
    draw(host, some) {
      const lines = some.filter((row) => row.calibration.length).map((row) => ({
        name: nameOf(row, some, row.label), ...look(row, true),
        points: row.calibration.map(([x, y, low, high]) => ({ x, y: 100 * y, low: 100 * low, high: 100 * high, title: row.label, lines: [where(row), `confidence ${x.toFixed(3)}: ${percent(y)} are AR's${between(low, high, percent)}`] })),
      }));
      drawLines(host, { lines, xName: unique(some.map((row) => row.metric_of_confidence).filter(Boolean)).join(", ") || "confidence", yName: "tokens that are AR's (%)", column: true });
    },
  },
];

function buildPlots(host) {
  const redraws = PLOTS.filter((plot) => !plot.needs || rows.some(plot.needs)).map((plot) => {
    const chosen = {}, canvas = el("div");
    const controls = Object.entries(plot.axes || {}).map(([axis, all]) => {
      const usable = Object.entries(all).filter(([field]) => rows.some((row) => known(row[field])));
      const values = usable.length ? usable : Object.entries(all);
      chosen[axis] = values[0][0];
      const select = el("select", { "aria-label": axis === "x" ? "Horizontal axis" : "Vertical axis", onchange: () => { chosen[axis] = select.value; draw(); } });
      return options(select, values, chosen[axis]);
    });
    const draw = () => plot.draw(canvas, shownRows().filter(drawn), chosen);
    host.append(el("figure", { id: `plot-${plot.id}` },
      el("div", { class: "top" }, el("h3", {}, plot.title), el("div", {}, ...controls.reverse())), canvas, el("figcaption", {}, plot.caption)));
    return draw;
  });
  const drawAll = () => redraws.forEach((redraw) => redraw());
  legend($(".legend"), drawAll);
  listeners.push(drawAll);
  let last = 0;
  new ResizeObserver(() => { if (host.clientWidth !== last) { last = host.clientWidth; drawAll(); } }).observe(host);
  addEventListener("beforeprint", drawAll);
}

// One legend for all plots: what is pressed out is drawn in none of them.
function legend(host, redraw) {
  const toggle = (name, color) => el("button", {
    type: "button", "aria-pressed": "true", "--color": color,
    onclick: (event) => {
      const shown = hidden.delete(name) || !hidden.add(name);
      event.currentTarget.setAttribute("aria-pressed", String(shown));
      redraw();
    },
  }, name);
  const series = new Map(rows.map((row) => [seriesOf(row), look(row).color])), taus = unique(rows.map(tauOf)).filter(Boolean);
  if (series.size > 1) host.append(...[...series].map(([name, color]) => toggle(name, color)));
  if (taus.length > 1) host.append(...taus.map((name) => toggle(name, "var(--faint)")));
}
