// Draws the trees of one task: depth to the right, one row per leaf, a parent centred on its children.

const rewardColor = (reward) => mix(Math.min(1, Math.max(0, reward)));

// 0 is bad, 0.5 neutral, 1 good.
function mix(t) {
  const [end, share] = t < 0.5 ? ["var(--bad)", 1 - 2 * t] : ["var(--good)", 2 * t - 1];
  return `color-mix(in oklab, ${end} ${Math.round(100 * share)}%, var(--neutral))`;
}

// Tag and text of the last tag of an action that is not the thought: `<search>Ulm</search>` → ["search", "Ulm"].
function actionOf(text) {
  const found = [...text.matchAll(/<([A-Za-z_][\w-]*)>([\s\S]*?)(?:<\/\1>|$)/g)].filter((m) => !/^think/i.test(m[1]));
  return found.length ? [found.at(-1)[1], found.at(-1)[2].trim()] : [null, text.trim()];
}

function nodeLabel(node) {
  if (!node.index) return "prompt";
  if (node.typed) return `${node.typed.node}: ${outputLine(node.typed)}`;
  const [tag, text] = actionOf(node.action);
  const said = text.replace(/\s+/g, " ") || "(empty)";
  if (node.end && node.end !== "answered") return `${node.end.replaceAll("_", " ")}: ${said}`;
  return tag && !["search", "answer"].includes(tag) ? `${tag}: ${said}` : said;
}

function nodeMark(node) {
  if (!node.end) return node.index ? (actionOf(node.action)[0] === "search" ? "⌕" : "›") : "";
  if (!isNumber(node.reward)) return "!";
  return isRight(node) ? "✓" : (node.score ?? node.reward) > 0 ? "◐" : "✗";
}

function scaleOf(task) {
  const nodes = task.trees.flatMap((tree) => tree.nodes);
  if (explorer.color === "reward") {
    const high = Math.max(1, task.high ?? 1);
    const low = Math.min(0, task.low ?? 0);
    return { low, high, of: (node) => node.meanReward, name: "mean reward of the paths below" };
  }
  if (explorer.color === "own") {
    const known = nodes.map(ownReward).filter(isNumber);
    return { low: Math.min(0, ...known), high: Math.max(1, ...known), of: ownReward, name: "the node's own reward, without penalties" };
  }
  if (explorer.color === "advantage") {
    const most = Math.max(...nodes.map((node) => Math.abs(node.meanAdvantage ?? 0))) || 1;
    return { low: -most, high: most, of: (node) => node.meanAdvantage, name: "advantage of the step, or its mean over the paths below" };
  }
  const least = Math.min(-0.1, ...nodes.map((node) => node.meanLogprob ?? 0));
  return { low: least, high: 0, of: (node) => node.meanLogprob, name: "mean log-probability of the node's tokens" };
}

function layout(tree, size) {
  let row = 0;
  const stack = [0];
  while (stack.length) {
    const node = tree.nodes[stack.pop()];
    node.width = node.index ? size.width : size.root;
    node.x = node.index ? size.root + size.column - size.width + (node.depth - 1) * size.column : 0;
    if (!node.children.length) node.y = row++ * size.row;
    stack.push(...node.children.toReversed());
  }
  for (const node of tree.nodes.toReversed()) {
    if (node.children.length) node.y = (tree.nodes[node.children[0]].y + tree.nodes[node.children.at(-1)].y) / 2;
  }
  return row * size.row;
}

function drawTrees(plot, key) {
  const { task } = explorer;
  const compact = task.leaves.length > 60;
  const size = compact
    ? { row: 20, column: 150, height: 16, width: 122, root: 56, letters: 24 }
    : { row: 36, column: 204, height: 28, width: 168, root: 68, letters: 24 };
  const scale = scaleOf(task);
  let top = 0;
  const groups = task.trees.map((tree) => {
    const height = layout(tree, size);
    const group = svg(
      "g",
      { transform: `translate(2 ${top + 26})`, role: "group", "aria-label": `Tree ${tree.index + 1}` },
      svg("text", { class: "tree-name", x: 0, y: -10 }, `Tree ${tree.index + 1}`),
      edges(tree, size),
      tree.nodes.map((node) => drawNode(tree, node, size, scale)),
    );
    top += height + 40;
    return group;
  });
  const depth = Math.max(...task.trees.flatMap((tree) => tree.nodes.map((node) => node.depth)));
  const width = size.root + depth * size.column + 4;
  plot.classList.toggle("compact", compact);
  plot.replaceChildren(
    svg(
      "svg",
      {
        width,
        height: top,
        viewBox: `0 0 ${width} ${top}`,
        role: "tree",
        "aria-label": "Search trees; arrow keys move along them",
      },
      groups,
    ),
  );
  const told = [
    el("span", null, scale.name, ": ", format.number(scale.low), el("i", { class: "ramp" }), format.number(scale.high)),
    ...["✓ right", "◐ partly", "✗ wrong", "! failed"].map((text) => el("span", null, text)),
    el("span", null, "dashed: a branch grown from an earlier node, with its number"),
    task.trees.some((tree) => tree.typed) && el("span", null, "framed in red: the node at fault on the chosen path"),
    el("span", null, "arrow keys move"),
  ];
  key.replaceChildren(...told.filter(Boolean));
  markSelection(plot);
}

function edges(tree, size) {
  return tree.nodes.slice(1).flatMap((node) => {
    const parent = tree.nodes[node.parent];
    const [x1, y1, x2, y2] = [parent.x + parent.width, parent.y + size.height / 2, node.x, node.y + size.height / 2];
    const bend = (x2 - x1) / 2;
    const first = node.slot > 0 && node.slot !== parent.slot;
    const color = node.slot ? `stroke:var(--c${((node.slot - 1) % 6) + 1})` : null;
    const path = svg("path", {
      class: `edge ${node.slot ? "branch" : ""} ${first ? "first" : ""}`,
      id: `edge-${tree.index}-${node.index}`,
      style: color,
      d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`,
    });
    return first
      ? [path, svg("text", { class: "slot", x: x2 - 4, y: y2 - 5, "text-anchor": "end" }, node.slot)]
      : [path];
  });
}

function drawNode(tree, node, size, scale) {
  const value = scale.of(node);
  const color = isNumber(value) ? mix((value - scale.low) / (scale.high - scale.low || 1)) : "var(--sunken)";
  const label = nodeLabel(node);
  const mark = nodeMark(node);
  const shown = label.length > size.letters ? `${label.slice(0, size.letters - 1)}…` : label;
  const told = [
    `step ${node.depth}`,
    label,
    isNumber(value) && `${scale.name} ${format.number(value)}`,
    node.end && node.end.replaceAll("_", " "),
  ]
    .filter(Boolean)
    .join(", ");
  const middle = size.height / 2 + 4;
  return svg(
    "g",
    {
      class: "node",
      id: `node-${tree.index}-${node.index}`,
      transform: `translate(${node.x} ${node.y})`,
      tabindex: -1,
      role: "treeitem",
      "aria-label": told,
      onclick: () => select(tree, node),
      onkeydown: (event) => walk(event, tree, node),
    },
    svg("title", null, told),
    svg("rect", {
      width: node.width,
      height: size.height,
      rx: node.end ? 4 : size.height / 2,
      style: `fill:color-mix(in oklab, ${color} 62%, var(--surface))`,
    }),
    svg("text", { class: "mark", x: 9, y: middle }, mark),
    // A nested svg cuts off what does not fit.
    svg("svg", { width: node.width - 6, height: size.height }, svg("text", { x: mark ? 25 : 12, y: middle }, shown)),
  );
}

function walk(event, tree, node) {
  const siblings = node.index ? tree.nodes[node.parent].children : [0];
  const place = siblings.indexOf(node.index);
  const level = tree.nodes.filter((other) => other.depth === node.depth).sort((a, b) => a.y - b.y);
  const along = (by) => level[level.indexOf(node) + by];
  const target = {
    ArrowLeft: () => (node.index ? tree.nodes[node.parent] : null),
    ArrowRight: () => tree.nodes[node.children[0]],
    ArrowDown: () => tree.nodes[siblings[place + 1]] ?? along(1),
    ArrowUp: () => tree.nodes[siblings[place - 1]] ?? along(-1),
    Home: () => tree.nodes[0],
  }[event.key];
  if (!target) return;
  event.preventDefault();
  const [trees, at] = [explorer.task.trees, explorer.task.trees.indexOf(tree)];
  const next = target() ?? (event.key === "ArrowDown" && trees[at + 1]?.nodes[0]) ?? null;
  if (next) select(tree.nodes.includes(next) ? tree : trees[at + 1], next, { focus: true });
}

function pathTo(tree, node) {
  const path = [node];
  while (path[0].index) path.unshift(tree.nodes[path[0].parent]);
  return path;
}

function markSelection(plot = document.getElementById("plot")) {
  const { tree, node } = explorer;
  const ids = new Set(pathTo(tree, node).map((n) => `${tree.index}-${n.index}`));
  const blame = tree.blames ? blameOf(tree, node) : null;
  for (const drawn of plot.querySelectorAll(".node, .edge")) {
    const [kind, ...id] = drawn.id.split("-");
    drawn.classList.toggle("on-path", ids.has(id.join("-")));
    if (kind !== "node") continue;
    const selected = id.join("-") === `${tree.index}-${node.index}`;
    drawn.setAttribute("aria-selected", selected);
    drawn.classList.toggle("at-fault", blame !== null && id.join("-") === `${tree.index}-${blame.index}`);
    drawn.setAttribute("tabindex", selected ? 0 : -1);
  }
}
