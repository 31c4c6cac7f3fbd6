"""An engine that raises once, in the middle of its work, when a file says so.

The fault is where a real one would be: in the process that runs the model. vLLM loads `arm` there as a plug-in, which
it finds by the entry point that `install` writes into a folder of the import path.
"""

import multiprocessing
import os
from pathlib import Path
from typing import Any

TRIGGER = "ESPALIER_CHAOS_ENGINE"
"""Environment variable with the path of a file: the first engine that meets it removes it and raises."""
WORDS = "the model runner failed on purpose"


def install(folder: Path) -> tuple[Path, dict[str, str]]:
    """The file that makes an engine raise, and the environment in which engines look for it."""
    package = folder / "espalier_chaos-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: espalier-chaos\nVersion: 1.0\n", encoding="utf-8")
    entry = "[vllm.general_plugins]\nespalier_chaos = scripts.chaos_engine:arm\n"
    (package / "entry_points.txt").write_text(entry, encoding="utf-8")
    trigger = folder / "engine-raises"
    return trigger, {TRIGGER: str(trigger), "PYTHONPATH": str(folder)}


def arm() -> None:
    """Makes the model runner of an engine process look for the file before each step."""
    if multiprocessing.parent_process() is None or TRIGGER not in os.environ:
        return
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    wrapper: Any = WorkerWrapperBase
    run, trigger = wrapper.execute_model, Path(os.environ[TRIGGER])
    if getattr(run, "is_armed", False):
        return

    def execute_model(self: Any, *arguments: Any, **named: Any) -> Any:
        if trigger.exists():
            trigger.unlink(missing_ok=True)
            raise RuntimeError(WORDS)
        return run(self, *arguments, **named)

    execute_model.is_armed = True  # type: ignore[attr-defined]
    wrapper.execute_model = execute_model
