// Two answers to the same document side by side, token by token.
const HUES = [245, 395]; // of the first and the last pass, in degrees
const hue = (share) => HUES[0] + (HUES[1] - HUES[0]) * clamp(share, 0, 1);
const idOf = (token) => data.pool[token][0];
const textOf = (token) => data.pool[token][1];

// For each token: its pass, its place in the pass, and how many tokens the pass brought.
function passesOf(answer) {
  if (!answer.committed.length) return answer.tokens.map(() => null);
  return answer.committed.flatMap((count, pass) => Array.from({ length: count }, (_, place) => ({ pass, place, count })));
}

// A confidence as a share; entropy, which falls as the model grows surer, as e to the minus it.
const sureness = (row, value) => (known(value) && row.metric_of_confidence === "entropy" ? Math.exp(-value) : value);

function firstDifference(one, other) {
  const length = Math.min(one.tokens.length, other.tokens.length);
  for (let at = 0; at < length; at++) if (idOf(one.tokens[at]) !== idOf(other.tokens[at])) return at;
  return one.tokens.length === other.tokens.length ? -1 : length;
}

function buildAnswers(host) {
  if (!data.documents.length) return host.append(el("p", { class: "nothing" }, "No answers are recorded with these runs."));
  const state = { at: 0, sides: [null, null], mode: "pass", upTo: Infinity, timer: null };
  const documents = () => data.documents.filter((doc) => (!filter.task || doc.task === filter.task)
    && Object.keys(doc.answers).some((place) => !filter.batch || String(rows[place].batch_size) === filter.batch));
  const choices = (doc) => Object.keys(doc.answers).map(Number).filter((place) => !filter.batch || String(rows[place].batch_size) === filter.batch);
  const name = (place) => `${rows[place].label}${severalBatches(rows) ? ` · batch ${rows[place].batch_size}` : ""}`;

  const picker = el("select", { "aria-label": "Document", onchange: () => go(Number(picker.value)) });
  const back = el("button", { type: "button", onclick: () => go(state.at - 1), "aria-label": "Previous document" }, "←");
  const on = el("button", { type: "button", onclick: () => go(state.at + 1), "aria-label": "Next document" }, "→");
  const play = el("button", { type: "button", onclick: () => (state.timer ? pause() : start()) }, "▶ Play");
  const slider = el("input", { type: "range", min: 1, max: 1, value: 1, "aria-label": "Passes shown", oninput: () => { pause(); reveal(Number(slider.value)); } });
  const count = el("span");
  const modes = ["pass", "confidence"].map((mode) => el("button", {
    type: "button", "data-mode": mode, onclick: () => { state.mode = mode; render(); } }, mode));
  const modeGroup = el("span", { role: "group", "aria-label": "Colour by" }, "Colour: ", ...modes);
  const verdict = el("p", { class: "verdict", "aria-live": "polite" });
  const sides = [0, 1].map((side) => {
    const select = el("select", { "aria-label": side ? "Right answer" : "Left answer", onchange: () => { state.sides[side] = Number(select.value); render(); } });
    const stats = el("div", { class: "stats" }), text = el("p", { class: "answer", tabindex: 0, role: "group", "aria-label": "Tokens of the answer" });
    return { select, stats, text, node: el("div", { class: "side" }, select, stats, text), spans: [] };
  });
  const ramp = el("span", { class: "ramp" }, ...Array.from({ length: 8 }, (_, step) => el("i", { "--hue": hue(step / 7) })));
  const key = el("div", { class: "key" });
  host.append(
    el("div", { class: "tools" }, el("span", {}, back, " ", picker, " ", on), el("span", { class: "wide" }, play, slider, count), modeGroup),
    verdict, el("div", { class: "sides" }, ...sides.map((side) => side.node)), key,
    el("p", { class: "key" }, "First repeat, first documents of each task, not chosen by outcome. The question: decodebench tasks show TASK --doc N"));

  function go(at) {
    const all = documents();
    state.at = clamp(at, 0, all.length - 1);
    render();
  }

  // Left the baseline, right the setting that needs fewest passes for a token, unless the reader chose otherwise.
  function choose(doc) {
    const there = choices(doc), pace = (place) => rows[place].tokens_per_pass || 0;
    const base = there.filter((place) => rows[place].is_baseline);
    if (!there.includes(state.sides[0])) state.sides[0] = base.at(-1) ?? there[0];
    if (!there.includes(state.sides[1])) {
      const left = rows[state.sides[0]];
      const others = there.filter((place) => place !== state.sides[0] && !rows[place].is_baseline);
      const near = others.filter((place) => rows[place].batch_size === left.batch_size);
      state.sides[1] = (near.length ? near : others).sort((a, b) => pace(b) - pace(a))[0] ?? there.find((place) => place !== state.sides[0]) ?? state.sides[0];
    }
  }

  function render() {
    pause();
    hideTip();
    const all = documents();
    host.hidden = !all.length;
    if (!all.length) return;
    state.at = clamp(state.at, 0, all.length - 1);
    const doc = all[state.at];
    choose(doc);
    const answers = state.sides.map((place) => doc.answers[place]);
    const sameModel = rows[state.sides[0]].model === rows[state.sides[1]].model;
    const differ = sameModel ? firstDifference(...answers) : -1;
    const most = Math.max(1, ...answers.map((answer) => answer.committed.length));
    const recorded = answers.some((answer) => answer.confidence);
    modeGroup.hidden = !recorded;
    if (!recorded) state.mode = "pass";
    modes.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.mode === state.mode)));
    options(picker, all.map((each, place) => [place, `${severalTasks(rows) ? `${each.task}: ` : ""}${each.name}`]), state.at);
    back.disabled = state.at === 0;
    on.disabled = state.at === all.length - 1;
    sides.forEach((side, which) => fill(side, doc, which, answers[which], differ, most));
    verdict.replaceChildren(...(state.sides[0] === state.sides[1] ? ["Only this answer is recorded."]
      : !sameModel ? ["Two models: their tokens cannot be compared one by one."]
        : differ < 0 ? ["Both answers are the same, token for token."]
          : [el("b", {}, `First difference at token ${differ + 1}`), ` of ${answers[0].tokens.length} and ${answers[1].tokens.length}.`]));
    key.replaceChildren(...(state.mode === "pass"
      ? [el("span", {}, "pass 1", ramp, `pass ${most}`)] : [el("span", {}, "unsure", ramp, "sure")]),
    el("span", {}, el("i", { class: "box" }), "first difference"));
    slider.max = most;
    reveal(most);
  }

  function fill(side, doc, which, answer, differ, most) {
    const place = state.sides[which], row = rows[place], passes = passesOf(answer);
    options(side.select, choices(doc).map((other) => [other, name(other)]), place);
    const total = answer.committed.length || answer.passes;
    side.stats.replaceChildren(
      el("span", {}, el("b", {}, String(answer.tokens.length)), " tokens"),
      el("span", {}, el("b", {}, String(total ?? "–")), " passes"),
      el("span", {}, el("b", {}, total ? number(answer.tokens.length / total) : "–"), " tokens per pass"),
      known(answer.latency) ? el("span", {}, el("b", {}, number(answer.latency)), " s") : "",
      known(answer.score) ? el("span", { class: answer.score > 0 ? "right" : "wrong" }, answer.score === 1 ? "✓ right" : answer.score === 0 ? "✗ wrong" : `score ${number(answer.score)}`) : "",
      answer.finish && answer.finish !== "stop_token" ? el("span", {}, { length: "cut at the limit", stop_string: "ended by a stop string", prompt_too_long: "prompt too long" }[answer.finish] || answer.finish) : "");
    side.answer = answer;
    side.passes = passes;
    side.spans = answer.tokens.map((token, at) => {
      const pass = passes[at], text = textOf(token);
      const share = state.mode === "confidence" ? sureness(row, answer.confidence?.[at]) : pass && pass.pass / Math.max(most - 1, 1);
      const classes = ["token", !known(share) && "plain", (!pass || pass.place === 0) && "begins", (!pass || pass.place === pass.count - 1) && "ends", at === differ && "first"];
      const shown = text.replaceAll("\r", "␍").replaceAll("\n", "↵\n");
      return el("span", { class: classes.filter(Boolean).join(" "), "--hue": known(share) ? hue(share) : null, "data-at": at }, shown === "" ? el("span", { class: "sign" }, "·") : shown);
    });
    const empty = answer.finish === "prompt_too_long" ? "The prompt left no room for an answer." : "An empty answer.";
    side.text.replaceChildren(...(side.spans.length ? side.spans : [empty]));
    if (answer.text !== undefined) side.text.prepend(el("span", {}, `${answer.text}\n\n`));
    side.text.setAttribute("aria-label", `Answer of ${row.label}`);
    side.here = -1;
  }

  function details(side, at) {
    const answer = side.answer, pass = side.passes[at], token = answer.tokens[at];
    return [JSON.stringify(textOf(token)), [
      `token ${at + 1} of ${answer.tokens.length}, id ${idOf(token)}`,
      pass && `pass ${pass.pass + 1} of ${answer.committed.length}, position ${pass.place + 1} of ${pass.count} in it`,
      answer.confidence && known(answer.confidence[at]) && `${rows[state.sides[sides.indexOf(side)]].metric_of_confidence || "confidence"} ${answer.confidence[at].toFixed(3)}`,
      answer.not_ar?.includes(at) && "AR would have taken another token here",
      !pass && "which pass brought it is not recorded",
    ]];
  }

  function point(side, at) {
    if (side.here === at) return;
    leave(side);
    side.here = at;
    const pass = side.passes[at]?.pass;
    if (known(pass)) side.spans.forEach((span, other) => span.classList.toggle("same", side.passes[other].pass === pass));
    side.spans[at].classList.add("here");
    showTip(side.spans[at], ...details(side, at));
  }

  function leave(side) {
    if (side.here < 0) return;
    side.spans.forEach((span) => span.classList.remove("same", "here"));
    side.here = -1;
    hideTip();
  }

  sides.forEach((side) => {
    side.text.addEventListener("mouseover", (event) => {
      const span = event.target.closest(".token");
      if (span) point(side, Number(span.dataset.at));
    });
    side.text.addEventListener("mouseleave", () => leave(side));
    side.text.addEventListener("blur", () => leave(side));
    side.text.addEventListener("keydown", (event) => {
      const last = side.spans.length - 1, step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -1e6, End: 1e6 }[event.key];
      if (!step || last < 0) return;
      event.preventDefault();
      point(side, clamp(side.here < 0 && step === 1 ? 0 : side.here + step, 0, last));
    });
  });

  function reveal(upTo) {
    state.upTo = upTo;
    slider.value = upTo;
    count.textContent = `after pass ${upTo} of ${slider.max}`;
    for (const side of sides) side.spans.forEach((span, at) => span.classList.toggle("later", Boolean(side.passes[at]) && side.passes[at].pass >= upTo));
  }

  function start() {
    const most = Number(slider.max);
    if (state.upTo >= most) reveal(0);
    play.textContent = "❚❚ Pause";
    state.timer = setInterval(() => (state.upTo < most ? reveal(state.upTo + 1) : pause()), clamp(6000 / most, 30, 250));
  }

  function pause() {
    clearInterval(state.timer);
    state.timer = null;
    play.textContent = "▶ Play";
  }

  host.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
    if (event.key === "j") go(state.at + 1);
    if (event.key === "k") go(state.at - 1);
  });
  listeners.push(render);
  render();
}
