// The tree explorer: choose a forest file and a task, see its trees, walk them.

const explorer = { forest: null, task: null, tree: 0, node: 0, query: "", outcome: "all", color: "reward" };

const outcomes = {
  all: ["All tasks", () => true],
  mixed: ["Mixed rewards", (t) => t.high > t.low],
  solved: ["All paths right", (t) => t.right === t.leaves.length],
  failed: ["No path right", (t) => t.right === 0],
};

const isRight = (leaf) => (leaf.score ?? leaf.reward ?? 0) >= 1;

// Adds to each tree what every view asks for: children, depth, and means over the leaves below each node.
function prepare(task) {
  if (task.ready) return task;
  task.trees.forEach((tree) => {
    tree.nodes.forEach((node, i) => {
      Object.assign(node, {
        index: i,
        children: [],
        depth: i ? tree.nodes[node.parent].depth + 1 : 0,
        rewards: [],
        advantages: [],
      });
      if (i) tree.nodes[node.parent].children.push(i);
    });
    for (let i = tree.nodes.length - 1; i >= 0; i--) {
      const node = tree.nodes[i];
      if (isNumber(node.reward)) node.rewards.push(node.reward);
      if (isNumber(node.advantage)) node.advantages.push(node.advantage);
      node.meanReward = mean(node.rewards);
      node.meanAdvantage = isNumber(node.advantage) ? node.advantage : mean(node.advantages);
      node.meanLogprob = mean(node.logprobs.filter(isNumber));
      if (i) tree.nodes[node.parent].rewards.push(...node.rewards);
      if (i) tree.nodes[node.parent].advantages.push(...node.advantages);
    }
  });
  task.leaves = task.trees.flatMap((tree) => tree.nodes.filter((node) => node.end));
  const rewards = task.leaves.map((leaf) => leaf.reward).filter(isNumber);
  task.high = rewards.length ? Math.max(...rewards) : null;
  task.low = rewards.length ? Math.min(...rewards) : null;
  task.right = task.leaves.filter(isRight).length;
  task.ready = true;
  return task;
}

// What was asked: the task's own question, or the last message without the instruction all tasks of the file share.
function question(forest, task) {
  if (typeof task.meta.question === "string") return task.meta.question;
  const text = task.prompt.at(-1)?.content ?? task.id;
  if (forest.shared === undefined)
    forest.shared = sharedPrefix(forest.tasks.map((t) => t.prompt.at(-1)?.content ?? ""));
  return text.slice(forest.shared).trim() || text;
}

function sharedPrefix(texts) {
  if (texts.length < 2) return 0;
  let length = 0;
  while (length < texts[0].length && texts.every((text) => text[length] === texts[0][length])) length++;
  return texts[0].slice(0, length).lastIndexOf("\n") + 1;
}

function treesView(route) {
  if (!page.forests.length)
    return el(
      "div",
      { class: "card empty" },
      "No trees in this run folder yet. They are written to forest/ while the run goes.",
    );
  explorer.forest = page.forests.find((forest) => forest.id === route[0]) ?? page.forests.at(-1);
  explorer.forest.tasks.forEach(prepare);
  explorer.task = explorer.forest.tasks.find((task) => task.id === route[1]) ?? liveliest(explorer.forest.tasks);
  explorer.tree = explorer.task.trees.find((tree) => String(tree.index) === route[2]) ?? explorer.task.trees[0];
  explorer.node = explorer.tree.nodes[Number(route[3])] ?? defaultNode(explorer.tree);
  return el(
    "div",
    { class: "explorer" },
    picker(),
    canvas(),
    el("aside", { class: "card panel", id: "panel", "aria-label": "Selected node" }, nodePanel(explorer)),
  );
}

// A task with both right and wrong paths says most about what is learned.
const liveliest = (tasks) =>
  tasks.find((t) => t.right && t.right < t.leaves.length) ?? tasks.find((t) => t.high > t.low) ?? tasks[0];

function defaultNode(tree) {
  const ends = tree.nodes.filter((node) => node.end && isNumber(node.reward));
  return ends.reduce((best, node) => (best === null || node.reward > best.reward ? node : best), null) ?? tree.nodes[0];
}

const linkTo = (forest, task, tree, node) =>
  `#trees/${[forest.id, task?.id, tree?.index, node?.index]
    .filter((x) => x !== undefined)
    .map((x) => encodeURIComponent(x))
    .join("/")}`;

function go(link, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", link);
  else location.hash = link;
}

function picker() {
  const at = page.forests.indexOf(explorer.forest);
  const open = (i) =>
    go(
      linkTo(
        page.forests[i],
        page.forests[i].tasks.find((t) => t.id === explorer.task.id),
      ),
    );
  const options = page.forests.map((forest, i) =>
    el(
      "option",
      { value: i, selected: i === at },
      `${forest.kind === "eval" ? "Evaluation" : "Training"}, step ${forest.step}`,
    ),
  );
  const list = el("ul", { class: "tasks" });
  const search = el("input", {
    class: "field",
    type: "search",
    placeholder: "Search questions",
    "aria-label": "Search questions",
    value: explorer.query,
    oninput: () => {
      explorer.query = search.value;
      fillTasks(list);
    },
  });
  const choose = el(
    "select",
    {
      class: "field",
      "aria-label": "Outcome",
      onchange: () => {
        explorer.outcome = choose.value;
        fillTasks(list);
      },
    },
    Object.entries(outcomes).map(([key, [name]]) =>
      el("option", { value: key, selected: key === explorer.outcome }, name),
    ),
  );
  const steps = el(
    "select",
    { class: "field", "aria-label": "Step", onchange: () => open(Number(steps.value)) },
    options,
  );
  const arrow = (text, name, i) =>
    el("button", { class: "button", "aria-label": name, disabled: !page.forests[i], onclick: () => open(i) }, text);
  fillTasks(list);
  return el(
    "section",
    { class: "card picker", "aria-label": "Tasks" },
    el(
      "div",
      null,
      el("div", { class: "stepper" }, arrow("‹", "Earlier", at - 1), steps, arrow("›", "Later", at + 1)),
      search,
      choose,
    ),
    list,
    leftOut(),
  );
}

function fillTasks(list) {
  const words = explorer.query.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (task) =>
    words.every((word) =>
      `${question(explorer.forest, task)} ${task.id} ${task.truth.join(" ")}`.toLowerCase().includes(word),
    );
  const tasks = explorer.forest.tasks.filter((task) => outcomes[explorer.outcome][1](task) && fits(task));
  list.replaceChildren(...tasks.map((task) => el("li", null, taskButton(task))));
  if (!tasks.length) list.append(el("li", { class: "empty" }, "No task fits."));
}

function taskButton(task) {
  const marks = task.leaves
    .slice(0, 48)
    .map((leaf) =>
      el("i", { style: `background:${isNumber(leaf.reward) ? rewardColor(leaf.reward) : "var(--line)"}` }),
    );
  const best = isNumber(task.high) ? `best ${format.number(task.high)}` : "no reward";
  return el(
    "button",
    { "aria-current": task === explorer.task, title: task.id, onclick: () => go(linkTo(explorer.forest, task)) },
    question(explorer.forest, task),
    el(
      "span",
      { class: "row" },
      el("span", { class: "marks", "aria-hidden": true }, marks),
      [
        `${task.right}/${task.leaves.length} right`,
        best,
        task.meta.hops && `${task.meta.hops} ${task.meta.hops === 1 ? "hop" : "hops"}`,
        taskBlame(task) && `at fault: ${taskBlame(task)}`,
      ]
        .filter(Boolean)
        .map((text) => el("span", null, text)),
    ),
  );
}

function leftOut() {
  const { trees, trees_in_file: all } = explorer.forest;
  const parts = [];
  if (trees < all) parts.push(`This page holds ${trees} of the ${all} trees of this file.`);
  if (page.left_out.files)
    parts.push(`${page.left_out.files} older forest files are not in this page; see forest/ in the run folder.`);
  return parts.length ? el("p", { class: "left-out" }, parts.join(" ")) : null;
}

function canvas() {
  const { forest, task } = explorer;
  const isTyped = task.trees.some((tree) => tree.typed);
  const colors = { reward: "Reward", own: "Node's reward", advantage: "Advantage", logprob: "Log-probability" };
  if (!isTyped) delete colors.own;
  const has = {
    reward: true,
    own: isTyped,
    advantage: task.leaves.some((leaf) => isNumber(leaf.advantage)),
    logprob: true,
  };
  if (!has[explorer.color]) explorer.color = "reward";
  const plot = el("div", { class: "plot", id: "plot" });
  const key = el("div", { class: "key" });
  const buttons = Object.keys(colors).map((name) =>
    el(
      "button",
      {
        class: "button",
        "aria-pressed": String(name === explorer.color),
        disabled: !has[name],
        onclick: () => {
          explorer.color = name;
          buttons.forEach((b, i) => b.setAttribute("aria-pressed", Object.keys(colors)[i] === name));
          drawTrees(plot, key);
        },
      },
      colors[name],
    ),
  );
  drawTrees(plot, key);
  const facts = [
    `${task.trees.length} ${task.trees.length === 1 ? "tree" : "trees"}`,
    `${task.leaves.length} paths`,
    `${task.right} right`,
    `accepted: ${task.truth.join(" or ")}`,
  ];
  return el(
    "section",
    { class: "card canvas", "aria-label": "Trees of the task" },
    el(
      "div",
      { class: "head" },
      el("h2", null, question(forest, task)),
      el(
        "div",
        { class: "tools" },
        el("span", { class: "muted" }, facts.join(" · ")),
        el(
          "div",
          { class: "switch", role: "group", "aria-label": "Colour nodes by" },
          el("span", { class: "label" }, "Colour"),
          buttons,
        ),
      ),
    ),
    plot,
    key,
  );
}

// Moves the selection without building the page again.
function select(tree, node, { focus = false } = {}) {
  explorer.tree = tree;
  explorer.node = node;
  go(linkTo(explorer.forest, explorer.task, tree, node), { replace: true });
  markSelection();
  document.getElementById("panel").replaceChildren(...nodePanel(explorer));
  const drawn = document.getElementById(`node-${tree.index}-${node.index}`);
  if (focus) drawn?.focus({ preventScroll: true });
  if (drawn) reveal(drawn, document.getElementById("plot"));
}
