"""Prints what a finished run achieved, where it lies, and what to try next: `scripts/after_run.py RUN_FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any


def lines(folder: Path, summary: dict[str, Any]) -> list[str]:
    """The closing words; `summary` is the run's summary.json."""
    before, after, ledger = summary["eval"]["before"], summary["eval"]["after"], summary["ledger"]
    cached = ledger["prefill_tokens_cached"]
    prefill = cached + ledger["prefill_tokens_computed"]
    return [
        "",
        f"Held-out success {before['success']:.1%} → {after['success']:.1%} on {after['n']:.0f} questions,"
        f" {summary['steps']} steps in {summary['time_s']['total'] / 60:.1f} min.",
        f"{ledger['trees']} trees, {ledger['leaves']} leaves, {ledger['sampled_tokens']} sampled tokens;"
        f" {cached / max(prefill, 1):.0%} of the prefill came from the cache.",
        "",
        f"  run folder  {folder}",
        f"  report      {folder / 'report.html'}   (open it in a browser)",
        f"  policy      {folder / 'export'}",
        "",
        "Next:",
        f"  scripts/eval.sh {folder} --samples 4          pass@k of the trained policy",
        "  scripts/quickstart.sh tree=chain                 the same number of leaves without branches",
        "  scripts/quickstart.sh tree.roots=2 tree.rounds=2  fewer, deeper trees",
    ]


def main() -> int:
    """Fails when the run left no summary."""
    folder = Path(sys.argv[1])
    file = folder / "summary.json"
    if not file.is_file():
        print(f"{file} is missing: the run did not finish.", file=sys.stderr)
        return 1
    print("\n".join(lines(folder, json.loads(file.read_text(encoding="utf-8")))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
