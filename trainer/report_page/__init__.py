"""The page of the report: its parts lie beside this file, `render` joins them with the data into one HTML file.

The file asks the network for nothing. Owns the two walls against text from models: the data sits in a JSON block
with no `<`, `>` or `&` in it, and the page's content security policy runs only the one script whose hash it names.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

_SCRIPTS = (
    "dom.js",
    "json_view.js",
    "charts.js",
    "chart_list.js",
    "ledger.js",
    "overview.js",
    "tree_plot.js",
    "picks.js",
    "node_panel.js",
    "typed_panel.js",
    "trees.js",
    "app.js",
)
_STYLES = ("style.css", "trees.css")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render(data: Mapping[str, Any]) -> str:
    """The page for `data` (`data["title"]` names it; the rest is read by the scripts)."""
    return assembled(part("page.html"), data, styles=map(part, _STYLES), scripts=map(part, _SCRIPTS))


def assembled(page: str, data: Mapping[str, Any], *, styles: Iterable[str], scripts: Iterable[str]) -> str:
    """`page` with its markers `{{title}}`, `{{style}}`, `{{data}}`, `{{script}}` and `{{script-hash}}` filled in."""
    script = "(() => {\n" + "\n".join(scripts) + "})();"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values = {
        "script-hash": digest,
        "title": html.escape(str(data["title"])),
        "style": "\n".join(styles),
        "data": embedded_json(data),
        "script": script,
    }
    # Split once at the markers, so that a marker inside a value stays what it is: text.
    head, *rest = page.split("{{")
    filled = [head]
    for piece in rest:
        name, _, after = piece.partition("}}")
        filled += [values[name], after]
    return "".join(filled)


def embedded_json(data: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element: no `<`, `>`, `&`, line separators or lone surrogates."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def part(name: str) -> str:
    """Text of one of the files beside this one."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
