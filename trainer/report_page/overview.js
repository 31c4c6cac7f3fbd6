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
  const facts = [
    ["Model", page.model, null],
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

const one = (title, name, color, more) => ({
  title,
  format: format.number,
  series: [{ name, color: `var(--${color})` }],
  ...more,
});

// The known charts. `name` may list alternatives ("a|b"): the first one that the run has is drawn.
function sections() {
  const share = { format: format.share, axis: (v) => `${Math.round(100 * v)} %`, low: 0, high: 1 };
  const small = { format: format.share, axis: (v) => `${+(100 * v).toPrecision(3)} %`, low: 0 };
  const limit = page.config?.guards?.max_logprob_diff;
  const stop = isNumber(limit) ? { value: limit, label: "run stops" } : null;
  const ends = Object.keys(page.series)
    .filter((name) => /^rollout\/end_.+_share$/.test(name))
    .sort();
  return [
    [
      "Learning",
      "Averages over all paths of a step.",
      [
        {
          title: "Success",
          wide: true,
          ...share,
          series: [
            { name: "rollout/success", label: "training", color: "var(--c2)" },
            { name: "eval/success", label: "held-out", color: "var(--c1)", points: true },
          ],
        },
        {
          title: "Reward",
          format: format.number,
          series: [
            { name: "rollout/reward|reward/mean", label: "mean", color: "var(--c1)" },
            { name: "reward/std", label: "spread (std)", color: "var(--c3)" },
          ],
        },
        {
          title: "Without signal",
          ...share,
          note: "Tasks whose advantages are all 0, and trees whose paths all got the same reward.",
          series: [
            { name: "reward/dead_groups", label: "tasks", color: "var(--c5)" },
            { name: "reward/dead_trees", label: "trees", color: "var(--c4)" },
          ],
        },
        {
          title: "How paths ended",
          stack: true,
          ...share,
          series: ends.map((name, i) => ({
            name,
            label: name.slice(12, -6).replaceAll("_", " "),
            color: `var(--c${(i % 6) + 1})`,
          })),
        },
      ],
    ],
    [
      "Cost",
      "Counted by the token ledger and the clock.",
      [
        {
          title: "Tokens",
          wide: true,
          stack: true,
          format: format.short,
          series: [
            { name: "ledger/sampled_tokens", label: "sampled", color: "var(--c1)" },
            { name: "ledger/prefill_tokens_computed", label: "prefill computed", color: "var(--c3)" },
            { name: "ledger/prefill_tokens_cached", label: "prefill cached", color: "var(--c6)" },
          ],
        },
        {
          title: "Time per phase",
          stack: true,
          format: format.seconds,
          axis: (v) => `${format.short(v)}s`,
          series: [
            { name: "time/collect_s", label: "collect", color: "var(--c1)" },
            { name: "time/learn_s", label: "learn", color: "var(--c2)" },
            { name: "time/push_s", label: "push", color: "var(--c5)" },
            { name: "time/eval_s", label: "eval", color: "var(--c4)" },
          ],
        },
        {
          title: "Tokens per second",
          format: format.count,
          axis: format.short,
          low: 0,
          series: [
            { name: "rollout/tokens_per_s", label: "sampled", color: "var(--c1)" },
            { name: "learner/tokens_per_s", label: "trained", color: "var(--c2)" },
          ],
        },
        {
          title: "Sharing prefixes in training",
          format: format.count,
          axis: format.short,
          low: 0,
          note: "Tokens the learner would run with one row per path, and tokens of the trees.",
          series: [
            { name: "tree/flat_tokens", label: "one row per path", color: "var(--c3)" },
            { name: "tree/unique_tokens", label: "tree", color: "var(--c1)" },
          ],
        },
        one("Tokens of rows per token of the trees", "learner/tree_token_ratio", "c3"),
        one("Tool calls", "ledger/tool_calls", "c4", { low: 0 }),
      ],
    ],
    [
      "Learner",
      "One optimizer phase per step.",
      [
        one("Loss", "learner/loss", "c2"),
        one("Gradient norm", "learner/grad_norm", "c2", { low: 0 }),
        one("KL to the reference", "learner/kl_reference|learner/kl", "c4", { low: 0 }),
        one("KL to the sampling policy", "learner/approx_kl", "c4", { low: 0 }),
        one("Clipped tokens", "learner/clip_share", "c3", small),
        one("Entropy", "learner/entropy", "c6"),
        one("Learning rate", "learner/lr", "c1", { low: 0 }),
        one("Trained tokens", "learner/trained_tokens|learner/tokens", "c1", { low: 0 }),
      ],
    ],
    [
      "Weight push",
      "After each push the engine's log-probabilities are compared with the learner's.",
      [
        one("Largest log-probability difference", "push/max_abs_logprob_diff", "c5", { low: 0, limit: stop }),
        one("Largest difference on the tokens trained", "learner/mismatch_max_abs_logprob_diff", "c5", { low: 0 }),
        one("Push time", "push/seconds", "c1", { format: format.seconds, low: 0 }),
        one("Bytes pushed", "push/bytes", "c2", { low: 0 }),
      ],
    ],
    [
      "Trees",
      "What the search grew.",
      [
        one("Paths (leaves)", "tree/leaves", "c1", { low: 0 }),
        one("Nodes", "tree/nodes", "c2", { low: 0 }),
        one("Depth", "tree/depth", "c4", { low: 0 }),
        one("Trees", "tree/trees", "c3", { low: 0 }),
      ],
    ],
  ];
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
    .filter((name) => !used.has(name) && !/^eval\/.+_(success|n)$/.test(name))
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
