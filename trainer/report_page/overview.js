// The first view: what the run reached, what it cost, and every curve.

const summary = page.summary ?? {};

function overviewView() {
  charts.length = 0;
  return el(
    "div",
    null,
    problems(),
    el("div", { class: "hero" }, scoreCard(), factsCard()),
    hopsTable(),
    chartSections(),
    liveTable(),
    ledgerTable(),
  );
}

function problems() {
  if (!page.problems.length) return null;
  return el(
    "div",
    { class: "notice", role: "status" },
    "This page shows what the run folder has; not found or not readable:",
    el(
      "ul",
      null,
      page.problems.map((p) => el("li", null, p)),
    ),
  );
}

function evaluations() {
  const before = summary.eval?.before;
  const after = summary.eval?.after;
  const measured = (page.series["eval/success"] ?? []).flatMap((value, i) =>
    isNumber(value) ? [{ success: value, n: page.series["eval/n"]?.[i], step: page.steps[i] }] : [],
  );
  const first = isNumber(before?.success) ? before : measured[0];
  const end = isNumber(after?.success) ? after : measured.length > 1 ? measured.at(-1) : null;
  return [first, end];
}

// Standard error of a share: sqrt(p (1 - p) / n); it says nothing at 0 and 1.
const standardError = (e) => (isNumber(e?.n) && e.n > 0 ? Math.sqrt((e.success * (1 - e.success)) / e.n) : null);

function scoreCard() {
  const [before, after] = evaluations();
  const card = el("section", { class: "card", "aria-label": "Success on held-out tasks" });
  const percent = (v, name) => el("span", { class: name }, (100 * v).toFixed(1), el("small", null, " %"));
  if (!before && !after) {
    const train = last(page.series["rollout/success"] ?? []);
    card.append(el("p", { class: "label" }, "No evaluation in this run yet"));
    if (isNumber(train))
      card.append(
        el("p", { class: "score" }, percent(train, "after")),
        el("p", { class: "muted" }, "success of the last training step"),
      );
    return card;
  }
  card.append(el("p", { class: "label" }, "Success on held-out tasks, before and after training"));
  if (!before || !after) {
    card.append(
      el("p", { class: "score" }, percent((before ?? after).success, "after")),
      el(
        "p",
        { class: "muted" },
        before ? "before training; not evaluated again yet" : "after training; not evaluated before",
      ),
    );
    return card;
  }
  card.append(
    el(
      "p",
      { class: "score" },
      percent(before.success, "before"),
      el("span", { class: "arrow", "aria-label": "to" }, "→"),
      percent(after.success, "after"),
    ),
  );
  const points = 100 * (after.success - before.success);
  const error = [standardError(before), standardError(after)];
  const spread = error.every((e) => e > 0) ? ` ± ${(100 * Math.hypot(...error)).toFixed(1)} (standard error)` : "";
  const tasks = isNumber(after.n) ? `${format.count(after.n)} tasks, greedy` : "greedy";
  card.append(
    el(
      "p",
      null,
      el(
        "span",
        { class: `delta ${points < 0 ? "down" : "up"}` },
        `${points < 0 ? "−" : "+"}${Math.abs(points).toFixed(1)} points`,
      ),
      el("span", { class: "muted" }, tasks + spread),
    ),
  );
  return card;
}

function factsCard() {
  const time = summary.time_s ?? {};
  const ledger = summary.ledger ?? {};
  const modelName = page.model?.split("/").filter(Boolean).at(-1);
  const facts = [
    ["Model", modelName, modelName !== page.model && page.model],
    ["Steps", summary.steps ?? page.steps.at(-1), isNumber(summary.seed) && `seed ${summary.seed}`],
  ];
  if (isNumber(time.total))
    facts.push([
      "Time",
      format.seconds(time.total),
      ["collect", "learn", "push", "eval"]
        .filter((k) => isNumber(time[k]))
        .map((k) => `${k} ${format.seconds(time[k])}`)
        .join(" · "),
    ]);
  if (isNumber(summary.weights_version))
    facts.push(["Weights version", summary.weights_version, "one per optimizer phase"]);
  if (isNumber(ledger.sampled_tokens))
    facts.push([
      "Sampled tokens",
      format.short(ledger.sampled_tokens),
      isNumber(ledger.leaves) && `${format.count(ledger.leaves)} paths in ${format.count(ledger.trees ?? 0)} trees`,
    ]);
  const prefill = (ledger.prefill_tokens_cached ?? 0) + (ledger.prefill_tokens_computed ?? 0);
  if (prefill > 0)
    facts.push([
      "Prefill from cache",
      format.share(ledger.prefill_tokens_cached / prefill),
      `of ${format.short(prefill)} prompt and observation tokens`,
    ]);
  const once = (name) => (page.series[`decision/${name}`] ?? []).find(isNumber);
  if (isNumber(once("backbone_share")))
    facts.push([
      "Backbone",
      format.share(once("backbone_share")),
      `of all weights; adapters save ${format.share(once("memory_saved"))} of weights, gradients and optimizer state`,
    ]);
  const parity = summary.parity?.max_abs_logprob_diff;
  if (isNumber(parity))
    facts.push(["Engine against learner", format.number(parity), "largest log-probability difference after any push"]);
  const list = facts.filter(([, value]) => value !== null && value !== undefined);
  if (!list.length) return el("section", { class: "card muted" }, "No summary yet: it is written when the run ends.");
  return el(
    "section",
    { class: "card", "aria-label": "Facts of the run" },
    el(
      "dl",
      { class: "facts" },
      list.map(([name, value, note]) =>
        el("div", null, el("dt", { class: "label" }, name), el("dd", null, value, note && el("small", null, note))),
      ),
    ),
  );
}

// Evaluation by kind of task: pairs such as eval/hops2_success and eval/hops2_n, first against last evaluation.
function hopsTable() {
  const kinds = Object.keys(page.series)
    .flatMap((name) => name.match(/^eval\/(.+)_success$/)?.[1] ?? [])
    .sort();
  const rows = kinds.flatMap((kind) => {
    const values = page.series[`eval/${kind}_success`].filter(isNumber);
    if (!values.length) return [];
    const [from, to] = [values[0], values.at(-1)];
    const n = last(page.series[`eval/${kind}_n`] ?? []);
    const change = 100 * (to - from);
    return [
      [
        kind.replace(/^hops?_?(\d+)$/, (_, k) => `${k} ${k === "1" ? "hop" : "hops"}`),
        isNumber(n) ? format.count(n) : "–",
        format.share(from),
        format.share(to),
        el("span", { class: change < 0 ? "bad" : "good" }, `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(1)}`),
        dumbbell(from, to),
      ],
    ];
  });
  if (!rows.length) return null;
  const columns = [
    { title: "Kind of task" },
    { title: "Tasks", num: true },
    { title: "Before", num: true },
    { title: "After", num: true },
    { title: "Points", num: true },
    { title: "0 – 100 %" },
  ];
  return [
    heading("Held-out success by kind of task", "First evaluation against the last one."),
    el("div", { class: "card" }, table(columns, rows)),
  ];
}

function dumbbell(from, to) {
  const x = (v) => 8 + 164 * v;
  return svg(
    "svg",
    { class: "dumbbell", viewBox: "0 0 180 18", "aria-hidden": true },
    svg("line", { x1: 8, x2: 172, y1: 9, y2: 9, stroke: "var(--line)", "stroke-width": 2 }),
    svg("line", {
      x1: x(from),
      x2: x(to),
      y1: 9,
      y2: 9,
      stroke: to < from ? "var(--bad)" : "var(--accent)",
      "stroke-width": 4,
    }),
    svg("circle", { cx: x(from), cy: 9, r: 4.5, fill: "var(--surface)", stroke: "var(--muted)", "stroke-width": 2 }),
    svg("circle", { cx: x(to), cy: 9, r: 5.5, fill: to < from ? "var(--bad)" : "var(--accent)" }),
  );
}

function chartSections() {
  if (!page.steps.length)
    return el("div", { class: "card empty" }, "No metrics yet. The curves appear once the run has finished a step.");
  const known = sections();
  const used = new Set([
    "push/version",
    "eval/n",
    "eval/step",
    ...known.flatMap(([, , specs]) => specs.flatMap((spec) => spec.series.flatMap((s) => s.name.split("|")))),
  ]);
  const rest = Object.keys(page.series)
    .filter((name) => !used.has(name) && !/^eval\/.+_(success|n)$/.test(name) && !name.startsWith(LIVE))
    .sort();
  const parts = known.flatMap(([title, note, specs]) => {
    const cards = specs.map(chart).filter(Boolean);
    return cards.length ? [heading(title, note), el("div", { class: "charts" }, cards)] : [];
  });
  parts[0]?.append(smoothToggle());
  const others = rest.map((name, i) => chart(one(name, name, `c${(i % 6) + 1}`))).filter(Boolean);
  if (others.length)
    parts.push(
      el(
        "details",
        { class: "others" },
        el("summary", null, `Other metrics of this run (${others.length})`),
        el("div", { class: "charts" }, others),
      ),
    );
  return parts;
}

const LIVE = "decision/live/";

// Settings that were changed while the run went on.
function liveTable() {
  const keys = Object.keys(page.series).filter((name) => name.startsWith(LIVE) && !name.endsWith("/before"));
  const changes = keys.flatMap((name) =>
    page.series[name].flatMap((value, i) => {
      const before = page.series[`${name}/before`]?.[i];
      return isNumber(value) ? [{ step: page.steps[i], key: name.slice(LIVE.length), before, value }] : [];
    }),
  );
  if (!changes.length) return null;
  changes.sort((a, b) => a.step - b.step);
  const columns = [
    { title: "Before step", num: true },
    { title: "Setting" },
    { title: "From", num: true },
    { title: "To", num: true },
  ];
  const rows = changes.map(({ step, key, before, value }) => [
    format.count(step),
    key,
    isNumber(before) ? format.number(before) : "–",
    format.number(value),
  ]);
  return [heading("Live changes", "Taken over while the run went on."), el("div", { class: "card" }, table(columns, rows))];
}

function smoothToggle() {
  const press = () => {
    pointer.smooth = !pointer.smooth;
    toggle.setAttribute("aria-pressed", String(pointer.smooth));
    charts.forEach(draw);
  };
  const toggle = el(
    "button",
    { class: "button push-right", "aria-pressed": String(pointer.smooth), onclick: press },
    "Smooth",
  );
  return toggle;
}
