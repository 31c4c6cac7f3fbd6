"""The command `python -m trainer.main`: settings in, a finished run or one sentence per fault out.

Order: compose and validate, check files and model, join the cluster, compare its resources, then `trainer.loop`. A
fault found on the way is printed to standard error and gives exit code 2; until then no actor exists.
"""

import argparse
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from omegaconf import OmegaConf

from trainer.cluster import connect
from trainer.compose import CONFIG_DIR, compose, compose_settings
from trainer.config import RunConfig
from trainer.config.sentences import ConfigError
from trainer.plan import plan
from trainer.preflight import Findings, check_files
from trainer.resources import check_cluster

REFUSED = 2
"""Exit code for a setting, a file or a cluster that cannot be used."""
FAILED = 1
"""Exit code when a started run could not go on; the last line says why."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
TERMINATED = 143
"""Exit code after SIGTERM, which is what `ray job stop` sends."""

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
        print(*error.sentences, sep="\n", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:  # before the cluster was joined
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


def _print_settings(overrides: Sequence[str], config_dir: Path) -> int:
    composed = compose_settings(overrides, config_dir=config_dir)
    if composed.faults:
        raise ConfigError(list(composed.faults))
    print(OmegaConf.to_yaml(composed.settings), end="")
    return 0


def _on_cluster(config: RunConfig, findings: Findings) -> int:
    """Everything that needs Ray. The connection ends with this function, and with it every actor of the run."""
    import ray

    connect(config)
    stops: list[int] = []

    def on_sigterm(number: int, _frame: FrameType | None) -> NoReturn:
        stops.append(number)
        raise KeyboardInterrupt  # Ray's waits let no other exception through

    try:
        signal.signal(signal.SIGTERM, on_sigterm)  # after ray.init, which sets its own
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        faults = check_cluster(config, resources, [node["Resources"] for node in nodes if node["Alive"]])
        if faults:
            raise ConfigError(faults)
        if config.dry_run:
            print(plan(config, findings, resources))
            return 0
        from trainer.loop import run

        return run(config)
    except ConfigError:
        raise
    except (RuntimeError, ValueError) as error:
        print(f"The run stopped: {str(error).rstrip('.')}. Traceback: {_keep_traceback(config)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("Stopped by SIGTERM." if stops else "Interrupted.", file=sys.stderr)
        return TERMINATED if stops else INTERRUPTED
    finally:
        ray.shutdown()


def _keep_traceback(config: RunConfig) -> Path:
    """Writes the traceback of the error being handled into the run folder, where it hides no sentence."""
    file = Path(config.runs_dir) / config.name / "traceback.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(traceback.format_exc(), encoding="utf-8")
    return file


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
