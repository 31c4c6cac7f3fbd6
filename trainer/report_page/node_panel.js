// Everything about the selected node, and the path that leads to it.

let tokenView = false;

function nodePanel({ forest, task, tree, node }) {
  const path = pathTo(tree, node);
  const told = tree.typed
    ? [!node.index && promptBody(task, node), trunkBlock(tree, node), typedBody(node)]
    : [node.index ? nodeBody(node) : promptBody(task, node), pathList(forest, task, tree, path)];
  return [nodeHead(tree, node), ...told, picksBlock(tree), taskLedger(task)].filter(Boolean);
}

function nodeHead(tree, node) {
  const versions = [...new Set(node.versions)].sort((a, b) => a - b);
  const facts = [
    [node.end ? "Reward" : "Mean reward below", node.meanReward, format.number],
    [isNumber(node.advantage) ? "Advantage" : "Mean advantage below", node.meanAdvantage, format.signed],
    ["Score", node.score, format.number],
    ["Paths below", node.end ? null : node.rewards.length, format.count],
    ["Sampled tokens", node.tokens || null, format.count],
    ["Mean log-prob.", node.meanLogprob, format.number],
    ["Lowest log-prob.", node.logprobs.length > 1 ? Math.min(...node.logprobs.filter(isNumber)) : null, format.number],
    [tree.typed ? "Tokens of the next prompt" : "Observation tokens", node.observation_tokens || null, format.count],
    ["Tool calls", node.tool_calls || null, format.count],
    ["Entropy", node.entropy, format.number],
  ].filter(([, value]) => isNumber(value));
  const step = node.typed ? `Step ${node.depth}: ${node.typed.node}` : `Step ${node.depth}`;
  const title = node.index ? step : "Prompt";
  const place = [
    `tree ${tree.index + 1}, node ${node.index}`,
    node.index && (node.slot ? `branch ${node.slot}` : "first chain"),
    versions.length && `weights version ${versions.join(", ")}`,
    node.end && node.end.replaceAll("_", " "),
  ].filter(Boolean);
  return el(
    "div",
    null,
    el("h2", null, title),
    el("p", { class: "muted" }, place.join(" · ")),
    node.note && el("p", null, node.note),
    el(
      "dl",
      { class: "chips" },
      facts.map(([name, value, text]) => el("div", null, el("dt", null, name), el("dd", null, text(value)))),
    ),
  );
}

// Splits an action into its tags, `<think>…</think>` and so on; text outside of tags is kept as it is.
function splitTags(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(/<([A-Za-z_][\w-]*)>([\s\S]*?)<\/\1>/g)) {
    if (text.slice(at, found.index).trim()) parts.push(["text", text.slice(at, found.index)]);
    parts.push([found[1], found[2]]);
    at = found.index + found[0].length;
  }
  if (text.slice(at).trim()) parts.push(["text", text.slice(at)]);
  return parts;
}

function nodeBody(node) {
  const names = { think: "Thought", text: "Outside of tags", search: "Action: search", answer: "Action: answer" };
  const body = el("div");
  const fillBody = () => {
    const toggle = el(
      "button",
      {
        class: "button",
        "aria-pressed": String(tokenView),
        title: "Show each token, coloured by its log-probability",
        onclick: () => {
          tokenView = !tokenView;
          fillBody();
        },
      },
      "Tokens",
    );
    const read = splitTags(node.action).map(([tag, text]) =>
      el(
        "div",
        { class: "block" },
        el("h3", null, names[tag] ?? `Action: ${tag}`),
        el("p", { class: `text ${["think", "text"].includes(tag) ? "" : "action"}` }, text.trim() || "(empty)"),
      ),
    );
    const said = tokenView ? tokensBlock(node) : read.length ? read : el("p", { class: "muted" }, "(nothing sampled)");
    const saw =
      node.observation &&
      el(
        "div",
        { class: "block" },
        el("h3", null, "Observation"),
        el("p", { class: "text observation" }, node.observation.trim()),
      );
    body.replaceChildren(el("h3", null, "What the policy wrote", toggle), ...[said].flat(), ...(saw ? [saw] : []));
  };
  fillBody();
  return body;
}

function tokensBlock(node) {
  if (!node.pieces.length)
    return el(
      "div",
      { class: "block" },
      el("p", { class: "muted" }, "This tokenizer gives no text for single tokens; log-probabilities in order:"),
      el("p", { class: "tokens" }, node.logprobs.map((v) => format.number(v)).join("  ")),
    );
  const spans = node.pieces.map((piece, i) => {
    const value = node.logprobs[i];
    const doubt = Math.min(1, Math.max(0, -value / 4));
    return el(
      "span",
      {
        style: `background:color-mix(in oklab, var(--bad) ${Math.round(75 * doubt)}%, transparent)`,
        title: `token ${i + 1}: log-probability ${format.number(value)}, probability ${format.share(Math.exp(value))}, version ${node.versions[i]}`,
      },
      piece.replaceAll("\n", "↵\n"),
    );
  });
  return el(
    "div",
    { class: "block" },
    el("p", { class: "tokens" }, spans),
    el(
      "p",
      { class: "muted", style: "font-size:12.5px;margin-top:6px" },
      "The redder, the less likely; point at a token for its number.",
    ),
  );
}

function promptBody(task, node) {
  const messages = task.prompt.map((message) =>
    el(
      "div",
      { class: "block" },
      el("h3", null, message.role),
      el("p", { class: "text observation" }, message.content),
    ),
  );
  return el(
    "div",
    null,
    messages,
    el(
      "div",
      { class: "block" },
      el("h3", null, "Accepted answers"),
      el("p", { class: "text" }, task.truth.join("\n")),
    ),
    node.observation &&
      el(
        "details",
        null,
        el("summary", { class: "muted" }, "Prompt as the model saw it"),
        el("p", { class: "text observation" }, node.observation),
      ),
  );
}

const inner = (text) => text.match(/^<([A-Za-z_][\w-]*)>([\s\S]*)<\/\1>$/)?.[2].trim() ?? text;

function pathList(forest, task, tree, path) {
  const items = path.map((node) => {
    const [tag, text] = actionOf(node.action);
    const said = node.index ? `${tag ? `${tag}: ` : ""}${text || "(empty)"}` : question(forest, task);
    return el(
      "li",
      null,
      el(
        "button",
        { "aria-current": node === explorer.node, onclick: () => select(tree, node) },
        el(
          "span",
          {
            class: "n",
            style: isNumber(node.meanReward)
              ? `background:color-mix(in oklab, ${rewardColor(node.meanReward)} 62%, var(--surface))`
              : null,
          },
          node.end ? nodeMark(node) : node.depth,
        ),
        el(
          "span",
          null,
          el("span", { class: "text" }, said),
          node.index && node.observation ? el("span", { class: "text saw" }, inner(node.observation.trim())) : null,
        ),
      ),
    );
  });
  return el("div", null, el("h3", null, "Path from the prompt"), el("ol", { class: "steps" }, items));
}
