"""The command `python -m trainer.evaluate`: greedy success and pass@k of an exported policy, without a learner.

It serves the policy with the run's own rollout actors and scheduler: the numbers mean what `eval/*` means in training.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout_workers.types import Forest
from trainer.config import RunConfig
from trainer.config.sentences import ConfigError
from trainer.metrics import eval_metrics
from trainer.preflight import check_evaluation


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is right (Chen et al. 2021, arXiv 2107.03374, Eq. 1).

    1 − C(samples − right, k) / C(samples, k); e.g. 4 samples, 1 right, k = 2 gives 0.5.
    """
    assert 1 <= k <= samples, f"k={k} must be from 1 to the number of samples {samples}"
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def pass_metrics(forest: Forest, samples: int) -> dict[str, float]:
    """`pass@1`, `pass@2`, `pass@4` … up to `samples`, averaged over the tasks whose samples all got a score."""
    right = [
        sum(score == 1.0 for score in scores)
        for group in forest
        if len(scores := [n.score for tree in group.trees for n in tree.nodes if n.score is not None]) == samples
    ]
    ks = sorted({min(2**power, samples) for power in range(samples.bit_length() + 1)})
    return {f"pass@{k}": sum(pass_at_k(samples, r, k) for r in right) / max(len(right), 1) for k in ks}


def evaluate(config: RunConfig, samples: int) -> dict[str, float]:
    """Greedy success on the held-out tasks of `config`, and pass@k from `samples` samples at temperature 1 if > 0.

    Needs a connected Ray. Raises ConfigError for a prompt that is too long, and RuntimeError when the actors can't be
    started in time or more branches than `env.max_error_share` ended in an environment error.
    """
    from envs.tasks import chosen_tasks, load_tasks
    from rollout_workers.fleet import Fleet
    from trainer import placement
    from trainer.codec import run_codec
    from trainer.failures import check_failures
    from trainer.prompts import check_prompts
    from trainer.session import chain_rules, collection_spec, fleet_settings, load_tokenizer, located

    config = located(config)
    held_out = load_tasks(config.env.eval_tasks, instruction=config.env.instruction)
    tasks = chosen_tasks(held_out, config.evaluation.tasks)
    tasks = check_prompts(run_codec(config, load_tokenizer(config.model)), tasks, config.limits)
    reservation = placement.reserve(config, learner=False)
    fleet = Fleet(fleet_settings(config), reservation.rollout, reservation.first_rollout_bundle)
    try:
        fleet.wait_ready()
        fleet.begin_work()

        def collect(phase: str, chains: int, temperature: float) -> Forest:
            spec = collection_spec(config, phase, tasks, chain_rules(chains), temperature)
            harvest = fleet.collect(spec, on_progress=lambda progress: None, rejoin=fleet.begin_work)
            check_failures(phase, harvest.ledger, harvest.failures, config.env.max_error_share)
            return harvest.forest

        result = {name.removeprefix("eval/"): value for name, value in eval_metrics(collect("greedy", 1, 0.0)).items()}
        if samples:
            result |= pass_metrics(collect("samples", samples, 1.0), samples)
        return result
    finally:
        fleet.shutdown()
        placement.release(reservation)


def load_config(run: Path, overrides: Sequence[str]) -> RunConfig:
    """The stored settings of a run with its exported policy as the model, and `overrides` on top.

    Raises ConfigError for a folder that is no finished run and for wrong overrides.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped]

    from trainer.compose import validate

    stored, export = run / "config.yaml", run / "export"
    if not stored.is_file() or not (export / "config.json").is_file():
        raise ConfigError([f"{run} is not the folder of a finished run: it needs config.yaml and export/."])
    if wrong := [text for text in overrides if not text.partition("=")[0] or "=" not in text]:
        raise ConfigError([f"Cannot read {text!r}: a setting is written key=value." for text in wrong])
    policy = OmegaConf.create({"model": {"path": str(export)}})
    try:
        settings = OmegaConf.load(stored)
        if not isinstance(settings, DictConfig):
            raise ConfigError([f"{stored} holds no settings: it must be what a run writes there."])
        merged = OmegaConf.merge(settings, policy, OmegaConf.from_dotlist(list(overrides)))
    except (OSError, UnicodeDecodeError, OmegaConfBaseException, YAMLError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError([f"{stored} and the settings given cannot be read: {first.rstrip('.')}."]) from None
    assert isinstance(merged, DictConfig), "all parts are mappings"
    return validate(merged)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; prints one JSON object, or one sentence per fault; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.evaluate", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder with config.yaml and export/")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings to change, e.g. evaluation.tasks=50"
    )
    parser.add_argument("--samples", type=int, default=0, help="samples per task for pass@k (0: greedy only)")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args(arguments)
    if options.samples < 0:
        parser.error("--samples must be 0 or more")
    try:
        config = load_config(options.run, options.overrides)
        check_evaluation(config)
        result: dict[str, Any] = _on_cluster(config, options.samples)
    except ConfigError as error:
        print(*error.sentences, sep="\n", file=sys.stderr)
        return 2
    except (RuntimeError, ValueError) as error:
        from rollout_workers.deaths import last_line

        print(f"The evaluation stopped: {last_line(error).rstrip('.')}.", file=sys.stderr)
        return 1
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        try:
            options.json.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            print(f"--json {options.json} cannot be written: {error.strerror}.", file=sys.stderr)
            return 1
    return 0


def _on_cluster(config: RunConfig, samples: int) -> dict[str, float]:
    import ray

    from trainer.cluster import connect

    connect(config)
    try:
        return evaluate(config, samples)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
