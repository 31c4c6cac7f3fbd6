// One step at a time: look, press a key, see the next. What is labelled is on disk before the next one is shown.

const GRADES = [
  ["1", "Wrong", 0, "n"],
  ["2", "Poor", 0.25],
  ["3", "Partly", 0.5],
  ["4", "Good", 0.75],
  ["5", "Right", 1, "y"],
];
const MOST_SKIPPED = 50;
const LOOK_AGAIN_MS = 5000;

const state = { step: null, node: "", skipped: [], seen: [], busy: false, timer: null };

async function ask(path, options) {
  const answer = await fetch(path, options);
  const found = await answer.json().catch(() => ({ error: `status ${answer.status}` }));
  if (!answer.ok) throw new Error(found.error ?? `status ${answer.status}`);
  return found;
}

// Runs one request after the other; a key that is pressed meanwhile is not taken.
async function busy(work) {
  if (state.busy) return;
  state.busy = true;
  try {
    await work();
  } catch (error) {
    say(`Not done: ${error.message}`, true);
  } finally {
    state.busy = false;
  }
}

function say(text, bad = false) {
  const line = document.getElementById("said");
  line.textContent = text;
  line.classList.toggle("bad", bad);
}

async function loadNext() {
  clearTimeout(state.timer);
  const query = new URLSearchParams({ node: state.node });
  for (const id of state.skipped) query.append("skip", id);
  const found = await ask(`api/next?${query}`);
  showProgress(found.progress);
  show(found.step, found.progress);
  if (!found.step) state.timer = setTimeout(() => busy(loadNext), LOOK_AGAIN_MS);
}

const grade = (label) =>
  busy(async () => {
    const { step } = state;
    if (!step) return;
    const note = document.getElementById("note").value.trim();
    await ask("api/label", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ id: step.id, label, ...(note && { note }) }),
    });
    remember(step.id);
    say(`Saved ${label} for ${step.node}, task ${step.task}.`);
    await loadNext();
  });

const skip = () =>
  busy(async () => {
    if (!state.step) return;
    state.skipped = [...state.skipped, state.step.id].slice(-MOST_SKIPPED);
    remember(state.step.id);
    say("Skipped; it comes again later.");
    await loadNext();
  });

const back = () =>
  busy(async () => {
    const id = state.seen.pop();
    if (!id) return say("This is the first one.");
    const found = await ask(`api/step?${new URLSearchParams({ id })}`);
    clearTimeout(state.timer);
    show(found.step, found.progress);
    say(isNumber(found.step.label) ? `Labelled ${found.step.label} before; a new label replaces it.` : "One back.");
  });

function remember(id) {
  if (state.seen.at(-1) !== id) state.seen.push(id);
}

function showProgress(progress) {
  const share = progress.queued ? progress.labelled / progress.queued : 0;
  const choose = el(
    "select",
    {
      class: "field",
      id: "filter",
      "aria-label": "Which nodes",
      onchange: () => {
        state.node = choose.value;
        choose.blur();
        busy(loadNext);
      },
    },
    [["", progress.queued - progress.labelled], ...progress.nodes.map((n) => [n.name, n.queued - n.labelled])].map(
      ([name, waiting]) =>
        el("option", { value: name, selected: name === state.node }, `${name || "All nodes"} (${waiting})`),
    ),
  );
  document
    .getElementById("progress")
    .replaceChildren(
      el("span", { class: "count" }, `${format.count(progress.labelled)} of ${format.count(progress.queued)} labelled`),
      el("progress", { max: 1, value: share, "aria-label": "Labelled" }),
      choose,
    );
}

function show(step, progress) {
  state.step = step;
  const view = document.getElementById("view");
  if (!step) {
    const why = progress.queued ? "Every queued step has a label." : "No step has been queued yet.";
    const skipped = state.skipped.length
      ? el("button", { class: "button", onclick: () => ((state.skipped = []), busy(loadNext)) }, `Show the ${state.skipped.length} skipped`)
      : null;
    const words = state.skipped.length || state.node ? "Nothing more waits here." : why;
    if (view.querySelector(".nothing")?.dataset.words === words) return;
    view.replaceChildren(
      el("section", { class: "card nothing", "data-words": words }, el("h1", { tabindex: -1 }, words), el("p", { class: "muted" }, "This page looks again every five seconds."), skipped),
    );
    return;
  }
  view.replaceChildren(el("article", { class: "card step", id: "step", "data-id": step.id }, head(step), parts(step)), rating(step));
  view.querySelector("h1").focus({ preventScroll: true });
  scrollTo(0, 0);
}

function head(step) {
  const old = isNumber(step.max_age) && step.age > step.max_age;
  const facts = [`task ${step.task}`, `training step ${step.step}`, `level ${step.depth + 1}`];
  return el(
    "header",
    null,
    el("h1", { tabindex: -1 }, step.node),
    el("p", { class: "muted" }, facts.join(" · ")),
    old && el("p", { class: "old" }, `Too old to be trained on: ${step.age} training steps; at most ${step.max_age} are used.`),
    isNumber(step.label) && el("p", { class: "old" }, `Label so far: ${step.label}${step.note ? ` (${step.note})` : ""}`),
  );
}

function parts(step) {
  const block = (name, content, kind = "") =>
    content && el("section", { class: `part-of ${kind}` }, el("h2", null, name), content);
  const rewards = step.parts ?? [];
  return [
    block("Instruction", el("p", { class: "text" }, step.instruction)),
    block("Input", jsonText(step.input)),
    step.output
      ? block("Output", jsonText(step.output), "output")
      : block("Output: not valid", el("p", { class: "text bad" }, step.fault), "output"),
    block("Found by its action", jsonText(step.found)),
    el(
      "details",
      null,
      el("summary", null, "What the automatic rewards say, and the prompt as the model saw it"),
      el("dl", { class: "json" }, rewards.map(([name, value]) => [el("dt", null, name), el("dd", null, format.number(value))])),
      el("p", { class: "text prompt" }, step.prompt),
    ),
  ];
}

function rating(step) {
  const button = ([key, name, label, yesNo]) =>
    el(
      "button",
      {
        class: "grade",
        "data-label": label,
        "aria-pressed": String(step.label === label),
        "aria-keyshortcuts": yesNo ? `${key} ${yesNo}` : key,
        style: `--grade:${label}`,
        onclick: () => grade(label),
      },
      el("kbd", null, key),
      el("span", null, name),
      yesNo && el("kbd", null, yesNo),
    );
  const plain = (key, name, action) =>
    el("button", { class: "button", "aria-keyshortcuts": key, onclick: action }, el("kbd", null, key), ` ${name}`);
  const note = el(
    "textarea",
    { class: "field", id: "note", rows: 1, maxlength: 4000, placeholder: "Note (key c, then Escape)", "aria-label": "Note" },
    step.note ?? "",
  );
  return el(
    "section",
    { class: "card rating", "aria-label": "Your label" },
    el("div", { class: "grades", role: "group", "aria-label": "How good is the output?" }, GRADES.map(button)),
    el("div", { class: "note-row" }, note, plain("b", "Back", back), plain("s", "Skip", skip)),
  );
}

function onKey(event) {
  const { target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement) {
    if (event.key === "Escape") target.blur();
    return;
  }
  const found = GRADES.find(([key]) => key === event.key);
  const action = found
    ? () => grade(found[2])
    : { y: () => grade(1), n: () => grade(0), s: skip, ArrowRight: skip, b: back, ArrowLeft: back, c: () => document.getElementById("note")?.focus() }[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

document.getElementById("run-name").textContent = page.title;
addEventListener("keydown", onKey);
busy(loadNext);
