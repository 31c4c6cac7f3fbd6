// Line and stacked charts over the steps of the run. All charts share one pointer: hovering a step in any of them
// shows its values in every legend.

const charts = [];
const pointer = { at: null, smooth: page.steps.length > 40 };

function chart(spec) {
  const legend = el("div", { class: "legend" });
  const plot = svg("svg", { role: "img" });
  const card = el(
    "div",
    { class: `card chart ${spec.wide ? "wide" : ""}` },
    el("h3", { title: spec.note }, spec.title),
    legend,
    plot,
  );
  const series = spec.series.flatMap((s) => {
    const name = s.name.split("|").find((known) => (page.series[known] ?? []).some(isNumber));
    return name ? [{ ...s, values: page.series[name] }] : [];
  });
  const self = { spec, legend, plot, card, series };
  if (!self.series.length) return null;
  plot.addEventListener("pointermove", (event) => point(nearest(self, event)));
  plot.addEventListener("pointerleave", () => point(null));
  new ResizeObserver(() => requestAnimationFrame(() => draw(self))).observe(card);
  charts.push(self);
  return card;
}

function point(at) {
  if (pointer.at === at) return;
  pointer.at = at;
  for (const one of charts) if (one.card.isConnected) legendOf(one);
}

function nearest(self, event) {
  const box = self.plot.getBoundingClientRect();
  const x = event.clientX - box.left;
  let best = null;
  page.steps.forEach((step, i) => {
    if (best === null || Math.abs(self.x(step) - x) < Math.abs(self.x(page.steps[best]) - x)) best = i;
  });
  return best;
}

function legendOf(self) {
  const at = pointer.at;
  const entries = self.series.map((s) => {
    const value = at === null ? last(s.values) : s.values[at];
    const text = isNumber(value) ? (s.format ?? self.spec.format)(value) : "–";
    return el("span", null, el("i", { style: `background:${s.color}` }), s.label && `${s.label} `, el("b", null, text));
  });
  self.legend.replaceChildren(...entries, ...(at === null ? [] : [el("span", null, `step ${page.steps[at]}`)]));
  if (!self.cross) return;
  self.cross.setAttribute("visibility", at === null ? "hidden" : "visible");
  if (at !== null) {
    self.cross.setAttribute("x1", self.x(page.steps[at]));
    self.cross.setAttribute("x2", self.x(page.steps[at]));
  }
}

function draw(self) {
  const { spec, plot, series } = self;
  const width = Math.max(plot.clientWidth, 200);
  const height = 170;
  const box = { left: 46, right: width - 10, top: 8, bottom: height - 20 };
  const [low, high] = range(self);
  const ticks = niceTicks(low, high, 4);
  const first = page.steps[0];
  const span = page.steps.at(-1) - first || 1;
  const inset = spec.stack ? (box.right - box.left) / (2 * page.steps.length) : 0;
  self.x = (step) => box.left + inset + ((step - first) / span) * (box.right - box.left - 2 * inset);
  self.y = (v) => box.bottom - ((v - ticks.low) / (ticks.high - ticks.low)) * (box.bottom - box.top);
  plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
  plot.setAttribute("height", height);
  plot.setAttribute("aria-label", describe(self));
  self.cross = svg("line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" });
  plot.replaceChildren(
    ...axes(self, ticks, box),
    ...(spec.stack ? stack(self, box) : series.flatMap((s) => line(self, s))),
    self.cross,
  );
  legendOf(self);
}

function describe(self) {
  const told = self.series.map((s) => {
    const text = s.format ?? self.spec.format;
    return `${s.label ?? ""} from ${text(s.values.find(isNumber))} to ${text(last(s.values))}`;
  });
  return `${self.spec.title}: ${told.join("; ")}`;
}

function range({ spec, series }) {
  if (spec.stack) {
    const sums = page.steps.map((_, i) => series.reduce((sum, s) => sum + (s.values[i] ?? 0), 0));
    return [0, Math.max(...sums) || 1];
  }
  const values = series.flatMap((s) => s.values.filter(isNumber));
  if (spec.limit && Math.max(...values) > spec.limit.value / 20) values.push(spec.limit.value);
  const low = Math.min(...values, spec.low ?? Infinity);
  const high = Math.max(...values, spec.high ?? -Infinity);
  if (low === high) return low === 0 ? [0, 1] : [Math.min(low * 0.5, low * 1.5), Math.max(low * 0.5, low * 1.5)];
  return [low, high];
}

function niceTicks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const from = Math.floor(low / step + 1e-9);
  const to = Math.ceil(high / step - 1e-9);
  const values = [];
  for (let i = from; i <= to; i++) values.push(i * step);
  return { low: from * step, high: to * step, values };
}

function axes(self, ticks, box) {
  const parts = ticks.values.flatMap((v) => [
    svg("line", { class: "gridline", x1: box.left, x2: box.right, y1: self.y(v), y2: self.y(v) }),
    svg("text", { x: box.left - 6, y: self.y(v) + 4, "text-anchor": "end" }, (self.spec.axis ?? format.short)(v)),
  ]);
  const wanted = Math.max(2, Math.min(8, Math.floor((box.right - box.left) / 80)));
  const first = page.steps[0];
  const span = page.steps.at(-1) - first;
  const labels = new Set(
    span
      ? niceTicks(first, first + span, wanted).values.filter(
          (v) => Number.isInteger(v) && v >= first && v <= first + span,
        )
      : [first],
  );
  for (const step of labels)
    parts.push(svg("text", { x: self.x(step), y: box.bottom + 15, "text-anchor": "middle" }, step));
  const limit = self.spec.limit;
  if (limit && limit.value <= ticks.high && limit.value >= ticks.low) {
    parts.push(
      svg("line", { class: "limit", x1: box.left, x2: box.right, y1: self.y(limit.value), y2: self.y(limit.value) }),
    );
    parts.push(svg("text", { x: box.right, y: self.y(limit.value) - 4, "text-anchor": "end" }, limit.label));
  }
  return parts;
}

function line(self, s) {
  const known = page.steps.flatMap((step, i) => (isNumber(s.values[i]) ? [[self.x(step), s.values[i]]] : []));
  const path = (points) =>
    points.map(([x, v], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${self.y(v).toFixed(1)}`).join("");
  const smooth = pointer.smooth && !s.points && known.length > 8;
  const parts = [svg("path", { class: `line ${smooth ? "faint" : ""}`, d: path(known), stroke: s.color })];
  if (smooth) parts.push(svg("path", { class: "line", d: path(average(known)), stroke: s.color }));
  if (s.points || known.length < 3) {
    for (const [x, v] of known)
      parts.push(
        svg("circle", { cx: x, cy: self.y(v), r: 4, fill: s.color, stroke: "var(--surface)", "stroke-width": 1.5 }),
      );
  }
  return parts;
}

// Exponential moving average with the usual correction for its start; 0.85 weighs about the last 7 steps.
function average(points, keep = 0.85) {
  let sum = 0;
  let weight = 0;
  return points.map(([x, v]) => {
    sum = keep * sum + (1 - keep) * v;
    weight = keep * weight + (1 - keep);
    return [x, sum / weight];
  });
}

function stack(self, box) {
  const wide = Math.max(1, Math.min(34, (0.78 * (box.right - box.left)) / page.steps.length));
  const below = page.steps.map(() => 0);
  return self.series.map((s) => {
    const bars = page.steps.map((step, i) => {
      const value = s.values[i] ?? 0;
      const top = self.y(below[i] + value);
      const height = self.y(below[i]) - top;
      below[i] += value;
      return height > 0
        ? `M${(self.x(step) - wide / 2).toFixed(2)} ${top.toFixed(2)}h${wide.toFixed(2)}v${height.toFixed(2)}h${(-wide).toFixed(2)}z`
        : "";
    });
    return svg("path", { d: bars.join(""), fill: s.color });
  });
}
