"""The page of the label server: its parts lie beside this file; look and builders are those of the report's page.

Text of models and of the world enters it through `textContent` only, and its content security policy runs only the one
script whose hash it names and lets that script talk to its own server alone.
"""

from importlib.resources import files

from trainer.report_page import assembled
from trainer.report_page import part as report_part


def render(run: str) -> str:
    """The page that labels the steps of the run with this name."""
    scripts = (report_part("dom.js"), report_part("json_view.js"), _part("label.js"))
    return assembled(
        _part("label.html"), {"title": run}, styles=(report_part("style.css"), _part("label.css")), scripts=scripts
    )


def _part(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
