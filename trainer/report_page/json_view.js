// JSON values as people read them: objects as lists of names and values, texts without quotes.

// Of JSON text; text that is no JSON is shown as it is.
function jsonText(text) {
  if (!text) return null;
  try {
    return jsonView(JSON.parse(text));
  } catch {
    return el("p", { class: "text" }, text);
  }
}

function jsonView(value) {
  if (Array.isArray(value)) {
    if (!value.length) return el("span", { class: "json muted" }, "(empty list)");
    const isPlain = value.every((item) => item === null || typeof item !== "object");
    return el(isPlain ? "ul" : "ol", { class: "json" }, value.map((item) => el("li", null, jsonView(item))));
  }
  if (value !== null && typeof value === "object") {
    const entries = Object.entries(value);
    if (!entries.length) return el("span", { class: "json muted" }, "(empty)");
    return el("dl", { class: "json" }, entries.map(([name, item]) => [el("dt", null, name), el("dd", null, jsonView(item))]));
  }
  if (typeof value === "string") return el("span", { class: "json text" }, value || "(empty text)");
  return el("span", { class: "json value" }, JSON.stringify(value));
}
