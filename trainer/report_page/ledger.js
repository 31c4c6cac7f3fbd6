// What the rollouts cost: the counts of the token ledger, with what each is a share of.

const of = (part, whole, text) => whole > 0 && isNumber(part) && `${format.share(part / whole)} of ${text}`;
const per = (part, whole, text) => whole > 0 && isNumber(part) && `${format.number(part / whole)} ${text}`;

// [key, name, note]; names that begin with a dash are parts of the row above.
const ledgerRows = [
  ["sampled_tokens", "Sampled tokens", (l) => per(l.sampled_tokens, l.leaves, "per path")],
  ["discarded_tokens", "– in no tree", (l) => of(l.discarded_tokens, l.sampled_tokens, "them: sampled again, or lost")],
  ["surplus_tokens", "– beyond the end of a step", () => "sampled before the engine stopped, apart from the count above"],
  ["prefill_tokens_unique", "Prompt and observation tokens", () => "each once"],
  ["prefill_tokens_computed", "– computed", prefillNote],
  ["prefill_tokens_block_bound", "– computed twice at least", () => "because only whole blocks are cached"],
  [
    "prefill_tokens_stolen",
    "– computed again by actors that stole",
    (l) => of(l.prefill_tokens_stolen, l.prefill_tokens_computed, "what was computed"),
  ],
  ["prefill_tokens_cached", "– from the cache", () => "as often as a request used them"],
  ["recomputed_tokens", "– run again", () => "after a push or for lack of memory, apart from the counts above"],
  ["engine_mismatch", "Tokens that the engines count otherwise", () => "0 unless something is wrong"],
  ["requests", "Requests to the engines", (l) => per(l.requests, l.leaves, "per path")],
  ["engine_busy_s", "Engines busy", busyNote],
  ["tool_calls", "Tool calls", (l) => per(l.tool_calls, l.leaves, "per path")],
  ["env_seconds", "Environment time", () => "of all branches, which wait side by side"],
  ["branches", "Branches run", (l) => isNumber(l.leaves) && `for ${format.count(l.leaves)} paths`],
  ["branches_stolen", "– by an actor without their tree", (l) => of(l.branches_stolen, l.branches, "them")],
  ["branches_requeued", "– started again", () => "because their actor was lost or late"],
  ["branches_failed", "– ended in an environment error", (l) => of(l.branches_failed, l.branches, "them")],
  ["siblings_equal", "Branches with a sibling's first action", (l) => of(l.siblings_equal, l.branches, "all branches")],
  ["siblings_resampled", "– steps and branches sampled again", () => null],
  ["growth_stopped", "Trees cut short by their budget", (l) => of(l.growth_stopped, l.trees, "all trees")],
  ["observations_cut", "Observations cut", () => null],
  ["observations_repaired", "Observations that were no text in part", () => null],
];

function prefillNote(ledger) {
  const { prefill_tokens_unique: unique, prefill_tokens_computed: computed } = ledger;
  const bound = unique + (ledger.prefill_tokens_block_bound ?? 0);
  return per(computed, unique, `per token; ${format.number(bound / unique)} with whole blocks alone, 1 is the least`);
}

function busyNote(ledger) {
  const share = mean((page.series["rollout/engine_busy_share"] ?? []).filter(isNumber));
  return isNumber(share) && `${format.share(share)} of the time of collections`;
}

// The run's totals: of its summary, or while there is none the sum over the steps so far.
function ledgerTotals() {
  if (summary.ledger) return summary.ledger;
  const names = Object.keys(page.series).filter((name) => name.startsWith("ledger/"));
  const total = (name) => page.series[name].filter(isNumber).reduce((a, b) => a + b, 0);
  return Object.fromEntries(names.map((name) => [name.slice("ledger/".length), total(name)]));
}

// Cells of a table: name, value and note of every count that the ledger has; `notes` replaces some of the notes.
function ledgerCells(ledger, notes = {}) {
  return ledgerRows.flatMap(([key, name, note]) => {
    if (!isNumber(ledger[key])) return [];
    const value = key.endsWith("seconds") || key.endsWith("_s") ? format.seconds : format.count;
    const part = name.startsWith("– ");
    const title = el("span", { class: part ? "part" : null }, part ? name.slice(2) : name);
    return [[title, value(ledger[key]), el("span", { class: "muted" }, (notes[key] ?? note)(ledger) || null)]];
  });
}

// What one task's rollouts cost, for the tree page; nothing in files that do not say.
function taskLedger(task) {
  const busy = () => "of what requests of several tasks shared, its part";
  const rows = ledgerCells(task.ledger ?? {}, { engine_busy_s: busy });
  if (!rows.length) return null;
  const columns = [{ title: "All trees of the task" }, { title: "Count", num: true }, { title: "" }];
  return el("div", { id: "task-ledger" }, el("h3", null, "What this task cost"), table(columns, rows));
}

function ledgerTable() {
  const rows = ledgerCells(ledgerTotals());
  if (!rows.length) return null;
  const columns = [{ title: "Training rollouts" }, { title: "Whole run", num: true }, { title: "" }];
  return [
    heading("Token ledger", "What was really sampled, computed and called; budgets and comparisons use these counts."),
    el("div", { class: "card", id: "ledger" }, table(columns, rows)),
  ];
}
