"""How a run ends that is told to: SIGTERM once and twice, Ctrl-C, a bound; with real signals to a real process."""

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from real_runs import heed_ctrl_c

from trainer.checkpoint_writer import CheckpointError
from trainer.endings import leave
from trainer.guards import GuardError
from trainer.learner import PushError
from trainer.main import exit_code
from trainer.push import MismatchError
from trainer.stopping import Stopped, StopRequest

PROGRAM = """
import signal, sys, time
from types import SimpleNamespace
from trainer.main import exit_code
from trainer.stopping import StopRequest, Stopped

stop = StopRequest()

def work():
    try:
        print("working", flush=True)
        if "heed" in sys.argv:
            stop.heed()
            print("heeding", flush=True)
        while True:
            stop.check()
            time.sleep(0.01)
    except Stopped:
        print("saving", flush=True)
        if "slowly" in sys.argv:
            time.sleep(60)
        if "badly" in sys.argv:
            raise RuntimeError("the last checkpoint could not be written")
        raise
    finally:
        print("closed", flush=True)

signal.signal(signal.SIGTERM, stop.on_sigterm)
config = SimpleNamespace(runs_dir=sys.argv[1], name="x")
sys.exit(exit_code(config, stop, work))
"""


class Process:
    """A process that works until it is told to end."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_ctrl_c,
        )
        self.until("heeding" if "heed" in words else "working")

    def until(self, line: str) -> None:
        assert self.process.stdout is not None
        while (read := self.process.stdout.readline().strip()) != line:
            assert read, f"ended before it said {line}"

    def end(self, number: signal.Signals) -> tuple[int, list[str], str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=50)
        return self.process.returncode, out.split(), err.strip()


def test_sigterm_lets_a_training_run_save_and_ends_it_with_0(tmp_path: Path) -> None:
    assert Process(tmp_path, "heed").end(signal.SIGTERM) == (0, ["saving", "closed"], "Stopped by SIGTERM.")


def test_sigterm_ends_a_run_that_has_not_begun_to_train_with_0_at_once(tmp_path: Path) -> None:
    code, lines, said = Process(tmp_path).end(signal.SIGTERM)
    assert (code, lines, said) == (0, ["closed"], "Stopped by SIGTERM before training began.")


def test_a_second_sigterm_does_not_wait_for_the_checkpoint(tmp_path: Path) -> None:
    run = Process(tmp_path, "heed", "slowly")
    run.process.send_signal(signal.SIGTERM)
    run.until("saving")
    assert run.end(signal.SIGTERM) == (143, ["closed"], "Stopped by SIGTERM without a checkpoint.")


def test_a_checkpoint_that_could_not_be_written_is_a_failure(tmp_path: Path) -> None:
    code, _, said = Process(tmp_path, "heed", "badly").end(signal.SIGTERM)
    assert code == 1
    assert said.startswith("The run stopped: the last checkpoint could not be written. Traceback: ")


def test_a_full_object_store_is_a_sentence_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ray.exceptions import ObjectStoreFullError

    def work() -> int:
        raise ObjectStoreFullError("12 bytes")

    assert exit_code(SimpleNamespace(runs_dir=str(tmp_path), name="x"), StopRequest(), work) == 1
    said = capsys.readouterr().err
    assert said.startswith("The run stopped: The local object store is full of objects that are still in scope")
    assert "ObjectStoreFullError: 12 bytes" in (tmp_path / "x" / "traceback.txt").read_text()


@pytest.mark.parametrize("words", [(), ("heed",)])
def test_ctrl_c_ends_a_run_cleanly_with_130(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert Process(tmp_path, *words).end(signal.SIGINT) == (130, ["closed"], "Interrupted.")


def test_ctrl_c_after_sigterm_ends_the_wait_for_the_checkpoint(tmp_path: Path) -> None:
    run = Process(tmp_path, "heed", "slowly")
    run.process.send_signal(signal.SIGTERM)
    run.until("saving")
    assert run.end(signal.SIGINT) == (130, ["closed"], "Interrupted.")


def test_a_request_is_heard_only_after_it_came() -> None:
    stop = StopRequest()
    stop.heed()
    stop.check()
    stop.on_sigterm(signal.SIGTERM, None)
    with pytest.raises(Stopped):
        stop.check()
    with pytest.raises(KeyboardInterrupt):
        stop.on_sigterm(signal.SIGTERM, None)
    assert stop.exit_code == 143


class Log:
    """A loop after `step` steps that writes down what is asked of it."""

    def __init__(self, step: int) -> None:
        self.said: list[str] = []
        self.totals = SimpleNamespace(step=step)
        self.is_between_steps = True
        self.session = SimpleNamespace(
            progress=SimpleNamespace(note=self.said.append),
            saver=SimpleNamespace(check=lambda: self.said.append("check")),
        )

    def save(self) -> None:
        self.said.append("save")


@pytest.mark.parametrize("reason", [Stopped("Stopped by SIGTERM"), GuardError("a ratio was 9")])
def test_a_run_that_ends_early_saves_its_last_step_and_waits_for_the_disk(reason: Exception) -> None:
    loop = Log(step=7)
    leave(loop, reason)
    assert loop.said == [
        f"{reason}: saving step 7",
        "save",
        "check",
        "step 7 is saved; a run of this name goes on from there (resume=auto)",
    ]
    start = Log(step=0)
    leave(start, reason)
    assert start.said == [f"{reason}: nothing was trained yet, so there is no checkpoint"]


@pytest.mark.parametrize("error", [RuntimeError("the tree scheduler died"), KeyError("x"), PushError("no engine")])
def test_an_error_beside_the_learner_costs_no_finished_step(error: Exception) -> None:
    loop = Log(step=7)
    leave(loop, error)
    assert loop.said == ["save", "check", "step 7 is saved; a run of this name goes on from there (resume=auto)"]


def test_what_may_be_wrong_takes_no_good_checkpoints_place() -> None:
    for error in (MismatchError("they disagree"), CheckpointError("the disk is full")):
        loop = Log(step=7)
        leave(loop, error)
        assert loop.said == []
    within, start = Log(step=7), Log(step=0)
    within.is_between_steps = False
    for loop in (within, start):
        leave(loop, RuntimeError("a rank died"))
        assert loop.said == []


def test_a_step_that_cannot_be_saved_hides_no_error() -> None:
    class Dead(Log):
        def save(self) -> None:
            raise TypeError("no rank answers")

    loop = Dead(step=7)
    leave(loop, RuntimeError("the first"))
    assert loop.said == ["step 7 could not be saved: no rank answers"]
    with pytest.raises(TypeError):
        leave(loop, Stopped("Stopped by SIGTERM"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("slots"), "KeyError: 'slots'"),
        (AssertionError(), "AssertionError"),
        (TypeError("no number:\n  x."), "TypeError: no number: x"),
        (ValueError("a sentence."), "a sentence"),
        (OSError("http://me:pw@host is gone"), "http://***@host is gone"),
    ],
)
def test_an_error_of_any_type_is_one_sentence_and_a_traceback(
    error: Exception, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    file = tmp_path / "x" / "traceback.txt"
    assert exit_code(SimpleNamespace(runs_dir=str(tmp_path), name="x"), StopRequest(), work) == 1
    assert capsys.readouterr().err == f"The run stopped: {words}. Traceback: {file}\n"
    assert "in work" in file.read_text()
    assert "me:pw" not in file.read_text()
