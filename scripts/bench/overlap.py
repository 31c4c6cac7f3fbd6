"""Time per training step without and with overlap: the same quickstart run, max_staleness 0 and 1, one after the other.

    python -m scripts.bench.overlap --json OUT.json [--page OUT.md] [--steps N] [--mode keep|drain] [--runs-dir DIR]
                                    [KEY=VALUE ...]

Real runs of `trainer.main`, each a process of its own. The first and the last step count in neither: nothing can be
collected ahead of the first, and nothing is left to be collected during the last, so the steps between have exactly one
forest each. `speedup` is the ratio of the mean times; `speedup_bound` is what it could be at best with these phases, if
collecting and learning did not share cores: (collect + learn + push) / max(collect, learn + push), both taken from the
run without overlap. Where they share cores, overlap gains only the time in which cores would have stood idle.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.bench import markdown
from scripts.bench.result_files import print_json, say, write, write_json
from trainer.run_folder import read_metrics

SHARED = ("experiment=quickstart", "cluster=local", "logger=none", "resume=never", "evaluation.every=0")
SETTINGS = ("evaluation.tasks=8",)
PHASES = ("collect", "learn", "push")
ROWS = {
    "seconds_per_step": "seconds per step",
    "collect_s": "of these waiting for the forest",
    "learn_s": "learning",
    "push_s": "pushing, and comparing engine and learner",
    "overlap_hidden_share": "share of the collection that went by beside these",
    "staleness_mean": "versions that a token lags behind, mean",
    "staleness_max": "at most",
    "mixed_version_branches": "branches with tokens of two versions, per step",
    "stale_leaves": "leaves dropped as too old",
    "largest_logprob_difference": "largest difference of a log-probability, engine and learner",
}
"""What the page shows of each run."""
PAGE = """# Collecting the next forest while the learner trains

    {command}

The same run twice, {steps} steps each, of which the first and the last are not counted: `max_staleness` 0 and 1,
`push.mode={mode}`. Means over the steps; engines, learner and tools share {cores} CPU cores.

{table}

A step is **{speedup:.2f} times** as fast. With cores of their own for engines and learner it could be {bound:.2f}
times, (collect + learn + push) ÷ max(collect, learn + push); where they share cores, overlap gains only the time in
which cores would have stood idle: the engine's while the environment answers, the learner's while it waits for a push.
Without overlap the learner waits {waits_before:.0%} of a step, with it {waits_after:.0%}.
"""


def run(name: str, runs_dir: Path, overrides: Sequence[str]) -> list[dict[str, float]]:
    """The metrics of every training step. Raises RuntimeError with the run's last line when it fails."""
    command = [sys.executable, "-m", "trainer.main", *SHARED, *overrides, f"name={name}", f"runs_dir={runs_dir}"]
    log = runs_dir / f"{name}.log"
    say(f"{name}: started, output in {log}")
    with log.open("w") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        raise RuntimeError(f"{name} ended with exit code {code}: {log.read_text().strip().splitlines()[-1]}")
    found = read_metrics(runs_dir / name / "metrics.jsonl").values()
    steps = [{name: value for name, value in values.items() if value is not None} for values in found]
    return [step for step in steps if "learner/loss" in step]


def summed(steps: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """Means over all steps but the first and the last; their `seconds` are all that the loop did or waited for."""
    counted = steps[1:-1]

    def mean(name: str) -> float:
        return statistics.fmean(float(step.get(name, 0.0)) for step in counted)

    seconds = [sum(step[f"time/{phase}_s"] for phase in PHASES) for step in counted]
    found: dict[str, object] = {
        "steps": len(counted),
        "seconds_per_step": statistics.fmean(seconds),
        "seconds_of_steps": [round(value, 3) for value in seconds],
        **{f"{phase}_s": mean(f"time/{phase}_s") for phase in PHASES},
        "staleness_mean": mean("rollout/staleness_mean"),
        "staleness_max": max(step["rollout/staleness_max"] for step in counted),
        "stale_leaves": sum(step["rollout/stale_leaves"] for step in counted),
        "mixed_version_branches": mean("rollout/mixed_version_branches"),
        "learner_waits_s": mean("time/collect_s"),
        "largest_logprob_difference": max(step.get("push/max_abs_logprob_diff", 0.0) for step in counted),
    }
    names = ("collect_s", "idle_s", "hidden_s", "hidden_share")
    return found | {f"overlap_{name}": mean(f"overlap/{name}") for name in names if f"overlap/{name}" in counted[0]}


def compared(synchronous: Mapping[str, object], overlapped: Mapping[str, object]) -> dict[str, float]:
    """The ratios of the module's docstring."""
    collect, learn, push = (float(str(synchronous[f"{phase}_s"])) for phase in PHASES)
    seconds = [float(str(arm["seconds_per_step"])) for arm in (synchronous, overlapped)]
    return {
        "speedup": seconds[0] / seconds[1],
        "speedup_bound": (collect + learn + push) / max(collect, learn + push),
        "learner_waits_share_synchronous": collect / seconds[0],
        "learner_waits_share_overlapped": float(str(overlapped["learner_waits_s"])) / seconds[1],
    }


def page(result: Mapping[str, Any], command: str, steps: int, mode: str) -> str:
    """The page as Markdown."""
    arms = [result["synchronous"], result["overlapped"]]
    rows = [[label, *(f"{arm[key]:.3g}" if key in arm else "" for arm in arms)] for key, label in ROWS.items()]
    return PAGE.format(
        command=command,
        steps=steps,
        mode=mode,
        cores=result["cpu_cores"],
        table=markdown.table(["", "max_staleness=0", "max_staleness=1"], rows),
        speedup=result["speedup"],
        bound=result["speedup_bound"],
        waits_before=result["learner_waits_share_synchronous"],
        waits_after=result["learner_waits_share_overlapped"],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs both and writes the result; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.overlap", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="file for the result")
    parser.add_argument("--page", type=Path, help="also write the result as Markdown")
    parser.add_argument("--steps", type=int, default=7, help="training steps of each run, at least 3 (default 7)")
    parser.add_argument("--mode", choices=["keep", "drain"], default="keep", help="push.mode (default keep)")
    parser.add_argument("--runs-dir", type=Path, help="where the run folders go (default: a temporary folder)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="further settings of both runs")
    options = parser.parse_args(arguments)
    if options.steps < 3:
        parser.error("--steps must be at least 3: the first and the last step are not counted")
    command = " ".join(["python -m scripts.bench.overlap", *(sys.argv[1:] if arguments is None else arguments)])
    settings = [*SETTINGS, f"steps={options.steps}", f"push.mode={options.mode}", *options.overrides]
    with tempfile.TemporaryDirectory() as temporary:
        runs_dir = options.runs_dir or Path(temporary)
        runs_dir.mkdir(parents=True, exist_ok=True)
        try:
            arms = {
                name: summed(run(name, runs_dir, [f"max_staleness={staleness}", *settings]))
                for staleness, name in enumerate(("synchronous", "overlapped"))
            }
        except RuntimeError as error:
            print(f"The benchmark stopped: {error}", file=sys.stderr)
            return 1
    result = {"settings": settings, "cpu_cores": len(os.sched_getaffinity(0)), **arms}
    result |= compared(arms["synchronous"], arms["overlapped"])
    print_json(result)
    write_json(options.json, result)
    if options.page is not None:
        write(options.page, page(result, command, options.steps, options.mode))
    return 0


if __name__ == "__main__":
    sys.exit(main())
