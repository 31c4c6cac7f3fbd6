"""Prints what a finished run achieved, where it lies, and what to try next: `scripts/after_run.py RUN_FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf


def lines(folder: Path, summary: dict[str, Any], tree: dict[str, Any]) -> list[str]:
    """The closing words; `summary` is the run's summary.json, `tree` that section of its config.yaml."""
    before, after, ledger = summary["eval"]["before"], summary["eval"]["after"], summary["ledger"]
    cached = ledger["prefill_tokens_cached"]
    prefill = cached + ledger["prefill_tokens_computed"]
    leaves = tree["roots"] * (1 + tree["rounds"] * tree["nodes_per_round"] * tree["branches_per_node"])
    tries = {
        f"scripts/eval.sh {folder} --samples 4": "pass@k of the trained policy",
        f"scripts/quickstart.sh tree.roots={leaves} tree.rounds=0": "as many attempts, none of them branching",
        "scripts/quickstart.sh advantage=inter": "credit by comparing all attempts at a task only",
    }
    width = max(map(len, tries))
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
        *(f"  {command:<{width}}   {meaning}" for command, meaning in tries.items()),
    ]


def main() -> int:
    """Fails when the run left no summary."""
    folder = Path(sys.argv[1])
    file = folder / "summary.json"
    if not file.is_file():
        print(f"{file} is missing: the run did not finish.", file=sys.stderr)
        return 1
    summary = json.loads(file.read_text(encoding="utf-8"))
    tree = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml").tree)
    assert isinstance(tree, dict), "a section of the configuration is a mapping"
    print("\n".join(lines(folder, summary, {str(key): value for key, value in tree.items()})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
