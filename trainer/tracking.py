"""Weights & Biases: the only file that imports wandb.

Owns the rule that tracking never asks, never blocks and never ends a run. Without credentials a run is tracked offline
in the run folder; when W&B fails, one line says so and training goes on without it. `metrics.jsonl` has the same
numbers, so nothing is lost.
"""

import netrc
import os
import queue
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from envs.masking import masked_text
from rollout_workers.trees import leaves, path
from trainer.forest_file import TreeRecord
from trainer.report import trees_page
from trainer.run_folder import RunFolder, masked_config

Mode: TypeAlias = Literal["auto", "online", "offline", "disabled"]

GROUPS = (
    *("rollout", "tree", "reward", "learner", "push", "overlap", "eval", "ledger", "checkpoint", "data"),
    *("decision", "system", "time"),
)
"""Metric groups; each has the one axis `step`."""

TREES_WAITING = 8
"""Calls; each has the trees of one step or evaluation."""
PATH_COLUMNS = ("step", "task", "question", "tree", "leaf", "path", "truth", "end", "reward", "advantage", "tokens")


class Tracker:
    """One W&B run. Every method returns quickly and none raises; after the first failure all of them do nothing.

    The run id is kept in `wandb/run-id.txt` of the run folder, so a resumed run goes on in the same W&B run.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: Mapping[str, object],
        *,
        mode: Mode = "auto",
        project: str = "espalier",
        entity: str | None = None,
        run_id: str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """`run_id` is the W&B run to go on with where the folder does not name one. `timeout_s`: longest wait for W&B
        at the start; at the end an upload may take twice that.
        """
        self._run: Any = None
        self._timeout_s = timeout_s
        self.mode = choose_mode(mode)
        """What the run really uses: online, offline or disabled."""
        self.run_id: str | None = None
        """W&B's id of this run, e.g. `"k3v9x1qa"`; None when disabled."""
        self._failed = 0
        self._left_out = 0
        self._is_over = False
        self._trees: queue.Queue[tuple[int, Sequence[TreeRecord]] | None] = queue.Queue(TREES_WAITING)
        """Read by a thread of its own: for a table wandb asks the server, and waits for its answer."""
        self._thread = threading.Thread(target=self._log_waiting_trees, name="wandb-trees", daemon=True)
        if self.mode == "disabled":
            return
        options = {"project": project, "entity": entity, "config": masked_config(config)}
        with self._guard("could not start"):
            self._start(folder, options, run_id)
        if self._run is None and self.mode == "online":
            self.mode = "offline"
            _end_service()  # which would say that the id of a resumed run is in use
            with self._guard("could not start offline either"):
                self._start(folder, options, run_id)
        if self._run is None:
            self.mode = "disabled"
            return
        self._thread.start()

    @property
    def url(self) -> str | None:
        """Page of the run; None unless online."""
        return self._run.url if self._run is not None and self.mode == "online" else None

    @property
    def files(self) -> Path | None:
        """W&B's own folder of this run: what `wandb sync` and `wandb leet` take; None when disabled."""
        return Path(self._run.dir).parent if self._run is not None else None

    def metrics(self) -> dict[str, float]:
        """Since this process began: how often W&B failed, and of how many steps and evaluations it lacks the trees."""
        return {
            "system/tracking_failed": float(self._failed),
            "system/tracking_trees_left_out": float(self._left_out),
        }

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of a step."""
        with self._guard("logging failed"):
            if self._run is not None:
                self._run.log({"step": step, **metrics})

    def log_trees(self, step: int, records: Sequence[TreeRecord]) -> None:
        """Logs sample trees twice: a table with one row per path, and a page to click through them.

        That is done by a thread, in turn. While `TREES_WAITING` calls wait for a W&B that is slow, more are left out
        and counted.
        """
        if self._run is None or not records:
            return
        try:
            self._trees.put_nowait((step, records))
        except queue.Full:
            self._left_out += 1
            if self._left_out == 1:
                print(
                    f"warning: Weights & Biases is slow to take sample trees: those of step {step} are left out there, "
                    "and maybe more (system/tracking_trees_left_out); the run folder keeps all of them"
                )

    def _log_waiting_trees(self) -> None:
        while (waiting := self._trees.get()) is not None:
            with self._guard("logging trees failed"):
                if self._run is not None:
                    _log_trees(self._run, *waiting)

    def summary(self, values: Mapping[str, object]) -> None:
        """Sets the run's summary, e.g. `{"eval": {"after": {"success": 0.71}}}`."""
        with self._guard("writing the summary failed"):
            if self._run is not None:
                self._run.summary.update(dict(values))

    def finish(self, *, failed: bool = False) -> None:
        """Ends the W&B run; what is not uploaded in time can be synced later."""
        with suppress(queue.Full, RuntimeError):  # W&B takes nothing, or the thread never began
            self._trees.put(None, timeout=self._timeout_s)
            self._thread.join(self._timeout_s)
        self._is_over = True
        with self._guard("did not take everything", then=f"`wandb sync {self.files}` uploads it later"):
            if self._run is not None:
                self._run.finish(exit_code=1 if failed else 0)
        self._run = None
        if self._failed:
            _end_service()

    def _start(self, folder: RunFolder, options: Mapping[str, Any], known: str | None) -> None:
        # What wandb reports of its own errors would hold up the end of a run while its server is silent.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        id_file = folder.wandb / "run-id.txt"
        known = id_file.read_text(encoding="utf-8").strip() if id_file.exists() else known
        settings = wandb.Settings(
            init_timeout=self._timeout_s,
            login_timeout=self._timeout_s,
            finish_timeout=2 * self._timeout_s,
            finish_timeout_raises=True,
            console="off",  # the terminal belongs to the progress display
            silent=True,
            x_disable_meta=True,  # it holds the command line, where a setting may be a secret; the config is masked
        )
        with warnings.catch_warnings(action="ignore"):
            run = wandb.init(
                **options,
                mode=self.mode,
                dir=str(folder.path),
                name=folder.name,
                id=known,
                # Offline runs cannot resume; their pieces share an id and are joined when synced.
                resume="allow" if self.mode == "online" else None,
                settings=settings,
            )
        run.define_metric("step", hidden=True)
        for group in GROUPS:
            run.define_metric(f"{group}/*", step_metric="step")
        id_file.write_text(run.id + "\n", encoding="utf-8")
        self._run, self.run_id = run, run.id

    @contextmanager
    def _guard(self, what: str, then: str = "training goes on, metrics.jsonl keeps all metrics") -> Iterator[None]:
        """Turns a failure of W&B into one warning line; the run is worth more than its tracking."""
        try:
            yield
        except Exception as error:  # wandb raises its own, network, OS and value errors alike
            if self._is_over and threading.current_thread() is self._thread:
                return  # trees that came too late: `finish` says what W&B did not take
            self._run, self.run_id = None, None
            self._failed += 1
            said = masked_text(str(error)).strip()
            reason = said.splitlines()[0].rstrip(".") if said else type(error).__name__
            print(f"warning: Weights & Biases {what}: {reason}; {then}")


def _log_trees(run: Any, step: int, records: Sequence[TreeRecord]) -> None:
    import wandb

    table = wandb.Table(columns=[*PATH_COLUMNS], data=path_rows(records), allow_mixed_types=True)
    page = wandb.Html(trees_page(records, title=f"Trees of step {step}"), inject=False, data_is_not_path=True)
    kind = "eval" if records[0].kind == "eval" else "tree"
    run.log({"step": step, f"{kind}/paths": table, f"{kind}/explorer": page})


def _end_service() -> None:
    """Ends W&B's own process after a failure. It may be dead, of which W&B's exit hook would print a traceback."""
    import wandb

    with suppress(Exception):  # as many kinds as in `Tracker._guard`
        wandb.teardown()


def choose_mode(mode: Mode) -> Literal["online", "offline", "disabled"]:
    """What `mode` comes down to here: online needs credentials, WANDB_MODE decides for `auto`; nothing is asked."""
    if mode == "auto":
        wish = os.environ.get("WANDB_MODE", "")
        if wish in ("offline", "disabled"):
            return "offline" if wish == "offline" else "disabled"
        return "online" if has_credentials() else "offline"
    if mode == "online" and not has_credentials():
        print("warning: logger.mode=online needs WANDB_API_KEY or `wandb login`; Weights & Biases runs offline")
        return "offline"
    return mode


def has_credentials() -> bool:
    """True if WANDB_API_KEY is set or the netrc file has a login for the W&B host; values are never read out."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    file = Path(os.environ.get("NETRC") or Path.home() / ".netrc").expanduser()
    try:
        return host in netrc.netrc(str(file)).hosts
    except (OSError, netrc.NetrcParseError):
        return False


def path_rows(records: Sequence[TreeRecord]) -> list[list[object]]:
    """One row per leaf: columns PATH_COLUMNS; `path` is every action and observation from the root on."""
    rows: list[list[object]] = []
    for record in records:
        nodes, texts, task = record.tree.nodes, record.texts, record.task
        for leaf in leaves(record.tree):
            steps = path(record.tree, leaf)[1:]
            told = "\n".join(texts[i].action + texts[i].observation for i in steps)
            end = nodes[leaf].end
            row: dict[str, object] = {
                "step": record.step,
                "task": task.id,
                "question": task.prompt[-1].content,
                "tree": record.tree.index,
                "leaf": leaf,
                "path": told,
                "truth": " | ".join(task.truth),
                "end": end.value if end else None,
                "reward": nodes[leaf].reward,
                "advantage": texts[leaf].advantage,
                "tokens": sum(len(nodes[i].token_ids) for i in steps),
            }
            rows.append([row[column] for column in PATH_COLUMNS])
    return rows


def system_metrics() -> dict[str, float]:
    """Resident memory of this process in MiB (Linux) and the machine's load per core over the last minute."""
    found = {"system/load_per_core": os.getloadavg()[0] / (os.cpu_count() or 1)}
    statm = Path("/proc/self/statm")
    if statm.exists():
        pages = int(statm.read_text(encoding="ascii").split()[1])
        found["system/driver_rss_mib"] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return found
