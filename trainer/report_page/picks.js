// Where a tree was branched: one column per round, one row per node that could have been picked.

const MAX_PICK_ROWS = 40;

// How often each node was picked in each round, and its scores; nodes picked or scored best first.
function pickRows(tree) {
  const rows = new Map();
  const row = (node) => {
    if (!rows.has(node)) rows.set(node, { node, scores: [], times: [] });
    return rows.get(node);
  };
  tree.picks.forEach((pick, round) => {
    for (const [node, score] of pick.scores) row(node).scores[round] = score;
    for (const node of pick.chosen) row(node).times[round] = (row(node).times[round] ?? 0) + 1;
  });
  const picked = (r) => r.times.reduce((a, b) => a + (b ?? 0), 0);
  const bestScore = (r) => Math.max(...r.scores.map((s) => s ?? -Infinity), -Infinity);
  return [...rows.values()].sort(
    (a, b) => picked(b) - picked(a) || bestScore(b) - bestScore(a) || a.node - b.node,
  );
}

function picksBlock(tree) {
  if (!tree.picks.length) return null;
  const rows = pickRows(tree);
  const scored = tree.picks.some((pick) => pick.scores.length);
  const columns = [{ title: "Node" }, ...tree.picks.map((_, i) => ({ title: `Round ${i + 1}`, num: true }))];
  const body = rows.slice(0, MAX_PICK_ROWS).map((r) => {
    const node = tree.nodes[r.node];
    const button = el(
      "button",
      { class: "link", onclick: () => select(tree, node) },
      r.node ? `${r.node}: ${nodeLabel(node)}` : "prompt",
    );
    return [button, ...tree.picks.map((_, round) => pickCell(r, round))];
  });
  const notes = [
    scored
      ? "The score of each node that could be picked; the marked ones were. – : nothing was known."
      : "Picked at random: how often each node was drawn.",
    rows.length > MAX_PICK_ROWS && `${rows.length - MAX_PICK_ROWS} further nodes are not shown.`,
  ];
  return el(
    "div",
    { id: "picks" },
    el("h3", null, `Where tree ${tree.index + 1} was branched`),
    table(columns, body),
    el("p", { class: "muted small" }, notes.filter(Boolean).join(" ")),
  );
}

function pickCell(row, round) {
  const score = row.scores[round];
  const times = row.times[round];
  if (score === undefined && !times) return "";
  const text = isNumber(score) ? format.number(score) : score === null ? "–" : "";
  const many = times > 1 || !text ? `${text} ×${times}` : text;
  return times ? el("span", { class: "picked" }, many.trim()) : text;
}
