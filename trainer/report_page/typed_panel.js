// Typed trees: what each decision node on a path was given, said and earned, and which one is at fault.

// The values of an output in one line, e.g. `refund · A17`.
function outputLine(typed) {
  if (typed.fault) return `not valid: ${typed.fault}`;
  try {
    const values = (value) =>
      value !== null && typeof value === "object" ? Object.values(value).flatMap(values) : [String(value)];
    return values(JSON.parse(typed.output)).filter(Boolean).join(" · ");
  } catch {
    return typed.output;
  }
}

// Expert, or else the mean of the automatic reward and the human label; null where there is none.
function ownReward(node) {
  const reward = node.typed?.reward ?? {};
  return reward.expert ?? mean([reward.automatic, reward.human].filter(isNumber));
}

// The path that a node's panel tells of: to the node itself if a task ended there, else to the best end below it.
function trunk(tree, node) {
  let end = node;
  while (!end.end && end.children.length) {
    const below = end.children.map((i) => tree.nodes[i]);
    end = below.reduce((best, other) => ((other.meanReward ?? -Infinity) > (best.meanReward ?? -Infinity) ? other : best));
  }
  return pathTo(tree, end);
}

const blameOf = (tree, node) => tree.blames?.[trunk(tree, node).at(-1).index] ?? null;

// Of a task without a right path: the node at fault on the best path of its first tree that tells one.
function taskBlame(task) {
  if (task.right) return null;
  for (const tree of task.trees) {
    const blame = tree.blames && blameOf(tree, defaultNode(tree));
    if (blame) return tree.nodes[blame.index].typed?.node ?? null;
  }
  return null;
}

const LEVELS = [
  ["automatic", "Automatic"],
  ["human", "Human label"],
  ["expert", "Expert"],
  ["penalty", "Hard rules"],
];

function levelsOf({ typed, label_note: note }) {
  const told = LEVELS.filter(([key]) => isNumber(typed.reward[key]));
  if (!told.length) return el("p", { class: "muted small" }, "No reward at any level.");
  const sign = (value) => (value < 0 ? "bad" : "");
  return [
    el(
      "dl",
      { class: "chips" },
      told.map(([key, name]) =>
        el(
          "div",
          null,
          el("dt", null, name),
          el("dd", { class: sign(typed.reward[key]) }, format.number(typed.reward[key])),
        ),
      ),
    ),
    typed.parts.length > 0 &&
      el("p", { class: "muted small" }, typed.parts.map(([name, value]) => `${name} ${format.number(value)}`).join(" · ")),
    note && el("p", { class: "muted small" }, `Note with the label: ${note}`),
  ];
}

const rewardLine = (typed) =>
  LEVELS.filter(([key]) => isNumber(typed.reward[key]) && (key !== "penalty" || typed.reward.penalty < 0))
    .map(([key]) => format.number(typed.reward[key]))
    .join(" / ");

function trunkBlock(tree, node) {
  const path = trunk(tree, node);
  const end = path.at(-1);
  const blame = tree.blames?.[end.index] ?? null;
  const score = end.score ?? end.reward;
  const outcome = !end.end
    ? "did not end"
    : !isNumber(score)
      ? end.end.replaceAll("_", " ")
      : isRight(end)
        ? "reached its goal"
        : `failed with score ${format.number(score)}`;
  const items = path.slice(1).map((step) => trunkItem(tree, step, node, blame));
  return el(
    "div",
    { id: "trunk" },
    el("h3", null, `Path of the task: ${outcome}`),
    blame && el("p", { class: "blame" }, el("b", null, "At fault: "), blame.why),
    el("ol", { class: "trunk" }, items),
  );
}

function trunkItem(tree, step, selected, blame) {
  const { typed } = step;
  const guilty = blame?.index === step.index;
  if (!typed) return el("li", { class: "muted" }, step.end ? step.end.replaceAll("_", " ") : "no record");
  const block = (name, content) => content && el("div", { class: "block" }, el("h4", null, name), content);
  const prompt = tree.nodes[step.parent].observation;
  return el(
    "li",
    { class: guilty ? "guilty" : null },
    el(
      "details",
      { open: guilty || step === selected },
      el(
        "summary",
        null,
        el("b", null, typed.node),
        guilty && el("span", { class: "badge" }, "at fault"),
        el("span", { class: "said" }, outputLine(typed)),
        el("span", { class: "worth", title: "Rewards by level; see below" }, rewardLine(typed)),
      ),
      block("Input", jsonText(typed.input)),
      typed.fault
        ? block("Output: not valid", el("p", { class: "text bad" }, typed.fault))
        : block("Output", jsonText(typed.output)),
      block("Found by its action", jsonText(typed.found)),
      block("Reward by level", levelsOf(step)),
      typed.gating?.length > 0 && block("The gate", gates(typed.gating)),
      prompt &&
        el(
          "details",
          null,
          el("summary", { class: "muted" }, "Prompt as the model saw it"),
          el("p", { class: "text observation" }, prompt),
        ),
      step !== selected && el("button", { class: "button", onclick: () => select(tree, step) }, "Show in the tree"),
    ),
  );
}

function gates(gating) {
  return el(
    "ul",
    { class: "json" },
    gating.map((gate) => el("li", null, `${gate.node} ${gate.runs ? "runs" : "is skipped"} (${format.share(gate.probability)})`)),
  );
}

function typedBody(node) {
  if (!node.index || !node.pieces.length) return null;
  return el("details", null, el("summary", { class: "muted" }, "Tokens of this step by log-probability"), tokensBlock(node));
}
