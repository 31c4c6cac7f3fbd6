"""The command `python -m trainer.main`: settings in, a finished run or one sentence per fault out.

Order: compose and validate, check files and model, join the cluster, compare its resources, then `trainer.loop`. A
fault found on the way is printed to standard error and gives exit code 2; until then no actor exists.
"""

import argparse
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

from omegaconf import OmegaConf

from envs.masking import masked_text
from trainer.cluster import connect
from trainer.compose import CONFIG_DIR, compose, compose_settings
from trainer.config import RunConfig
from trainer.config.sentences import ConfigError
from trainer.plan import plan
from trainer.preflight import Findings, check_files
from trainer.resources import check_cluster
from trainer.run_folder import masked_config
from trainer.stopping import ENDED, Stopped, StopRequest

REFUSED = 2
"""Exit code for a setting, a file or a cluster that cannot be used."""
FAILED = 1
"""Exit code when a started run could not go on; the last line says why."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""

_EXAMPLES = """\
examples:
  python -m trainer.main experiment=quickstart
  python -m trainer.main experiment=quickstart tree.roots=4 learner.lr=1e-4
  python -m trainer.main experiment=quickstart --cfg job      print the settings, run nothing
  python -m trainer.main experiment=quickstart dry_run=true   check everything, print the plan, run nothing
  python -m trainer.main model=hf model.path=ORG/NAME learner=gpu rollout=gpu

Every key with its accepted values, default and meaning: docs/configuration.md"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.cfg:
            return _print_settings(options.overrides, options.config_dir)
        config = compose(options.overrides, config_dir=options.config_dir)
        findings = check_files(config)
        for note in findings.notes:
            print(note, file=sys.stderr)
        return _on_cluster(config, findings)
    except ConfigError as error:
        print(*map(masked_text, error.sentences), sep="\n", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:  # before the cluster was joined
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


def _print_settings(overrides: Sequence[str], config_dir: Path) -> int:
    composed = compose_settings(overrides, config_dir=config_dir)
    if composed.faults:
        raise ConfigError(list(composed.faults))
    plain = cast(dict[str, object], OmegaConf.to_container(composed.settings, resolve=False))
    print(OmegaConf.to_yaml(OmegaConf.create(masked_config(plain))), end="")
    return 0


def _on_cluster(config: RunConfig, findings: Findings) -> int:
    """Everything that needs Ray. The connection ends with this function, and with it every actor of the run."""
    import ray

    connect(config)
    stop = StopRequest()

    def work() -> int:
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        faults = check_cluster(config, resources, [node["Resources"] for node in nodes if node["Alive"]])
        if faults:
            raise ConfigError(faults)
        if config.dry_run:
            print(plan(config, findings, resources))
            return 0
        from trainer.loop import run

        return run(config, stop)

    try:
        signal.signal(signal.SIGTERM, stop.on_sigterm)  # after ray.init, which sets its own
        return exit_code(config, stop, work)
    finally:
        ray.shutdown()


def exit_code(config: RunConfig, stop: StopRequest, work: Callable[[], int]) -> int:
    """Does the `work`, and says how it ended if it did not end by itself. Only ConfigError goes through."""
    try:
        return work()
    except ConfigError:
        raise
    except Stopped as stopped:
        print(f"{stopped}.", file=sys.stderr)
        return ENDED
    except Exception as error:  # of any kind, a learner's too: one sentence for the user, the rest into a file
        print(f"The run stopped: {_sentence(error)}. Traceback: {_keep_traceback(config)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(stop.words, file=sys.stderr)
        return INTERRUPTED if stop.exit_code is None else stop.exit_code


def _sentence(error: Exception) -> str:
    """What an error says, secrets masked; of one that is not meant to be read by users the type as well.

    Of Ray's own errors those come here that no wait for an actor has put into a sentence, e.g. a full object store.
    """
    from ray.exceptions import RayError

    from rollout_workers.deaths import cause

    said = cause(error) if isinstance(error, RayError) else " ".join(str(error).split())
    if not isinstance(error, RuntimeError | ValueError | OSError | RayError) or not said:
        said = f"{type(error).__name__}: {said}".removesuffix(": ")
    return masked_text(said).rstrip(".")


def _keep_traceback(config: RunConfig) -> str:
    """Writes the traceback of the error being handled into the run folder, where it hides no sentence; says where."""
    file = Path(config.runs_dir) / config.name / "traceback.txt"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(masked_text(traceback.format_exc()), encoding="utf-8")
    except OSError as error:  # perhaps the same that ended the run, e.g. a full disk
        return f"not kept ({error})"
    return str(file)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence instead of argparse's usage text."""
        self.exit(REFUSED, f"{message[:1].upper()}{message[1:]}; see --help.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m trainer.main",
        description="Trains an agent with tree-search rollouts on a Ray cluster.",
        epilog=f"{_groups()}\n\n{_EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="a setting, or an option of a group below")
    parser.add_argument("--cfg", choices=["job"], help="print the composed settings and exit")
    parser.add_argument("--config-dir", type=Path, default=CONFIG_DIR, help="folder with config.yaml (default: conf/)")
    return parser


def _groups() -> str:
    """The configuration groups with their options, e.g. `tree=chain|default`."""
    folders = sorted(path for path in CONFIG_DIR.glob("*") if path.is_dir())
    options = [(folder.name, "|".join(sorted(file.stem for file in folder.glob("*.yaml")))) for folder in folders]
    return "groups:\n" + "\n".join(f"  {name}={choices}" for name, choices in options if choices)


if __name__ == "__main__":
    sys.exit(main())
