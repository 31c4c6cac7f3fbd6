"""Checkpoint folders without a learner: which is found, damaged or kept, and what a resumed run is told."""

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from learner_runs import run_config
from micro_models import save_micro

from rollout_workers.types import Ledger
from trainer import checkpoint, checkpoint_manifest
from trainer.checkpoint_manifest import Damaged, FileSum
from trainer.checkpoint_resume import Resumption, resumption
from trainer.checkpoint_state import RunState, changes, model_id, settings_of, tokenizer_id
from trainer.checkpoint_writer import CheckpointError, Saver
from trainer.config import CheckpointConfig, RunConfig
from trainer.config.sentences import ConfigError
from trainer.totals import Totals

RANK = "learner-00000-of-00001.safetensors"


class Disk:
    """A learner of one rank whose share is 1,000 bytes; the disk can be made slow or full."""

    def __init__(self) -> None:
        self.go, self.full = threading.Event(), False
        self.go.set()

    def begin_save(self, path: Path) -> None:
        self.content = b"w" * 1000

    def wait_saved(self, path: Path, limit_s: float) -> dict[str, FileSum]:
        assert self.go.wait(limit_s)
        if self.full:
            raise RuntimeError(f"{RANK}: No space left on device")
        return {RANK: checkpoint_manifest.write_file(path / RANK, [self.content])}


def saver(root: Path, disk: Disk | None = None, **settings: Any) -> Saver:
    return Saver(disk or Disk(), root, CheckpointConfig(**settings))


def state(**metrics: float) -> dict[str, Any]:
    return {"metrics": metrics, "seen": ["a", "b"]}


def make(root: Path, *steps: int, **settings: Any) -> list[Path]:
    writer = saver(root, **({"keep": 9} | settings))
    for step in steps:
        writer.save(step, state())
    writer.check()
    return checkpoint.written(root)


def test_names() -> None:
    assert checkpoint.folder(Path("c"), 12) == Path("c/step-000012")
    assert checkpoint.step_of(Path("c/step-000012")) == 12
    with pytest.raises(ValueError, match="step-000012"):
        checkpoint.step_of(Path("c/last"))


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    (path,) = make(tmp_path, 3)
    found = checkpoint.find("auto", tmp_path)
    assert found is not None
    assert (found.path, found.state, found.notes) == (path, state(), ())
    assert {file.name for file in path.iterdir()} == {"manifest.json", RANK, checkpoint_manifest.read(path).run}
    assert checkpoint_manifest.read(path).files[RANK].bytes == 1000


def test_which_one_is_meant(tmp_path: Path) -> None:
    assert checkpoint.find("auto", tmp_path / "none") is None
    nine, ten = make(tmp_path, 9, 10)
    (tmp_path / "step-000011.part").mkdir()
    found = [checkpoint.find(resume, tmp_path) for resume in ("auto", "never", str(nine))]
    assert [one and one.path for one in found] == [ten, None, nine]
    with pytest.raises(ValueError, match=r"resume=.*step-000011 is not a usable checkpoint: it has no manifest\.json"):
        checkpoint.find(str(tmp_path / "step-000011"), tmp_path)


def shorten(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "it has no manifest.json"),
    "half a manifest": (lambda path: shorten(path / "manifest.json"), "manifest.json is cut off or damaged"),
    "an empty manifest": (lambda path: (path / "manifest.json").write_text(""), "manifest.json is cut off or damaged"),
    "another format": (
        lambda path: (path / "manifest.json").write_text('{"format": 1}'),
        "manifest.json is of format 1, and this version reads format 2",
    ),
    "no share": (lambda path: (path / RANK).unlink(), f"{RANK} is missing"),
    "half a share": (lambda path: shorten(path / RANK), f"{RANK} has 500 bytes and not 1,000"),
    "one bit": (lambda path: flip(path / RANK), f"the content of {RANK} has changed since it was written (checksum)"),
    "no state": (lambda path: next(path.glob("run-*.json")).unlink(), ".json is missing"),
    "another name": (lambda path: (path.parent / "step-000003").rename(path.parent / "step-000004"), "step 3 under"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_one_is_passed_over_with_a_sentence(tmp_path: Path, name: str) -> None:
    two, three = make(tmp_path, 2, 3)
    harm, said = DAMAGE[name]
    harm(three)
    found = checkpoint.find("auto", tmp_path)
    assert found is not None
    assert found.path == two
    assert len(found.notes) == 1
    assert f"checkpoint {tmp_path}/step-00000" in found.notes[0]
    assert said in found.notes[0]


def test_a_run_does_not_begin_again_because_all_are_damaged(tmp_path: Path) -> None:
    for path in make(tmp_path, 2, 3):
        flip(path / RANK)
    with pytest.raises(ValueError, match=r"no usable checkpoint \(.*step-000003.*step-000002.*resume=never"):
        checkpoint.find("auto", tmp_path)
    assert checkpoint.find("auto", tmp_path, checksums=False) is not None  # sizes are right


def test_the_newest_are_kept_and_the_best(tmp_path: Path) -> None:
    writer = saver(tmp_path, keep=2, best="eval/success")
    for step, success in enumerate([0.2, 0.7, 0.5, 0.7, 0.1], 1):
        writer.save(step, state(**{"eval/success": success}))
        writer.check()
    assert [checkpoint.step_of(path) for path in checkpoint.written(tmp_path)] == [4, 5]
    for step in (6, 7):
        writer.save(step, state())
        writer.check()
    assert [checkpoint.step_of(path) for path in checkpoint.written(tmp_path)] == [4, 6, 7]
    least = CheckpointConfig(keep=1, best="eval/success", best_mode="min")
    assert checkpoint.best(tmp_path, least) == checkpoint.folder(tmp_path, 4)
    assert not list(tmp_path.glob("*.part"))


def test_those_of_a_run_that_went_back_are_set_aside(tmp_path: Path) -> None:
    make(tmp_path, 1, 2, 3)
    make(tmp_path, 2)
    assert [path.name for path in checkpoint.written(tmp_path)] == ["step-000001", "step-000002"]
    aside = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("abandoned/*/*"))
    assert aside == ["abandoned/001/step-000002", "abandoned/002/step-000003"]


def test_what_a_run_does_not_go_on_from_is_set_aside_at_its_start(tmp_path: Path) -> None:
    one, two, three = make(tmp_path, 1, 2, 3)
    assert checkpoint.leave_behind(tmp_path, three) == []
    assert checkpoint.leave_behind(tmp_path, two) == [three]
    assert checkpoint.written(tmp_path) == [one, two]
    elsewhere = tmp_path / "other" / "step-000009"
    assert checkpoint.leave_behind(tmp_path, elsewhere) == [one, two], "a fork goes on from nothing of its own"
    assert checkpoint.find("auto", tmp_path) is None
    assert sorted(path.name for path in tmp_path.glob("abandoned/*/*")) == [path.name for path in (one, two, three)]
    assert checkpoint.leave_behind(tmp_path, None) == []


def test_the_loop_waits_for_the_disk_only_when_the_next_one_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, disk = 0.0, Disk()
    clocks = SimpleNamespace(perf_counter=lambda: now, monotonic=time.monotonic)
    monkeypatch.setattr("trainer.checkpoint_writer.time", clocks)

    class Waiting(Saver):
        def _join(self) -> None:
            nonlocal now
            if self._thread is not None and not disk.go.is_set():
                now += 5.0
                disk.go.set()
            super()._join()

    disk.go.clear()
    writer = Waiting(disk, tmp_path, CheckpointConfig(keep=9))
    writer.save(1, state())  # returns although nothing is written yet
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001.part"]
    assert checkpoint.find("auto", tmp_path) is None
    writer.save(2, state())
    news = writer.wait()
    assert news["checkpoint/wait_s"] == 5.0
    assert news["checkpoint/bytes"] == 1000 + len(json.dumps(state(), indent=1)) + 1
    assert news["checkpoint/failed"] == 0
    assert writer.wait() == {}
    assert len(checkpoint.written(tmp_path)) == 2


def test_the_state_of_a_saved_step_is_replaced_without_the_learner(tmp_path: Path) -> None:
    disk = Disk()
    writer = saver(tmp_path, disk)
    writer.save(1, state())
    writer.check()
    disk.full = True
    writer.save(1, state(**{"eval/success": 0.5}))
    writer.check()
    found = checkpoint.find("auto", tmp_path)
    assert found is not None
    assert found.state == state(**{"eval/success": 0.5})
    again = saver(tmp_path, disk)
    again.go_on_from(found.path)
    again.save(1, state())
    again.check()


def test_a_full_disk_costs_a_warning_and_that_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    writer = saver(tmp_path, disk)
    writer.save(1, state())
    writer.wait()
    disk.full = True
    writer.save(2, state())
    with pytest.raises(RuntimeError, match=r"the last checkpoint could not be written: step 2: .*No space left"):
        writer.check()
    assert "the checkpoint of step 2 could not be written" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    disk.full = False
    writer.save(3, state())
    writer.check()
    assert writer.news()["checkpoint/failed"] == 1
    assert [path.name for path in checkpoint.written(tmp_path)] == ["step-000001", "step-000003"]


def test_a_disk_that_hangs_is_given_up_and_publishes_nothing_later(tmp_path: Path) -> None:
    class Hung(Disk):
        def wait_saved(self, path: Path, limit_s: float) -> dict[str, FileSum]:
            if path.name == "step-000001.part":
                self.go.wait(60)
            return super().wait_saved(path, limit_s)

    disk = Hung()
    disk.go.clear()
    writer = saver(tmp_path, disk, timeout_s=0.2)
    writer.save(1, state())
    thread = next(thread for thread in threading.enumerate() if thread.name == "checkpoint-1")
    with pytest.raises(CheckpointError, match=r"written: step 1: it took longer than checkpoint\.timeout_s=0\.2 s"):
        writer.check()
    disk.go.set()
    thread.join(60)
    assert checkpoint.written(tmp_path) == []
    writer._settings = CheckpointConfig(timeout_s=60.0)
    writer.save(2, state())
    writer.check()
    assert [path.name for path in checkpoint.written(tmp_path)] == ["step-000002"]
    assert writer.failed == 1


def test_a_place_that_cannot_be_written_does_not_stop_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "checkpoints"
    place.write_text("a file")
    with caplog.at_level(logging.WARNING):
        writer = saver(place, background=False)
        writer.save(1, state())
    assert writer.failed == 1
    assert "the checkpoint of step 1 could not be written: Not a directory" in caplog.text


def test_what_an_interrupted_run_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "step-000004.part").mkdir()
    (tmp_path / "step-000004.part" / RANK).write_bytes(b"half")
    saver(tmp_path)
    assert list(tmp_path.iterdir()) == []


def run_state(config: RunConfig, **more: Any) -> RunState:
    totals = Totals()
    totals.advance(Ledger(sampled_tokens=5), {})
    fields: dict[str, Any] = {"name": config.name, "model": model_id(config.model.path), **more}
    return RunState(totals=totals, config=settings_of(config), **fields)


def test_the_run_state_comes_back() -> None:
    then = run_state(run_config(Path("m")), probes=[[1, 2], [3]], next_tasks=["a"], metrics={"eval/success": 0.5})
    assert RunState.from_json(json.loads(json.dumps(then.to_json()))) == then
    with pytest.raises(Damaged, match="another version"):
        RunState.from_json(then.to_json() | {"unknown": 1})


def resumed(config: RunConfig, then: RunConfig, root: Path, **more: Any) -> Resumption:
    """Saves a checkpoint of the run `then` and asks what `config`, resuming from it, is told."""
    writer = saver(root / "checkpoints")
    writer.save(1, run_state(then, **more).to_json())
    writer.check()
    found = resumption(config.model_copy(update={"resume": str(root / "checkpoints" / "step-000001")}))
    assert found is not None
    return found


def test_harmless_changes_are_listed(model: Path, tmp_path: Path) -> None:
    then = run_config(model)
    config = run_config(model, lr=2e-3).model_copy(update={"steps": 6})
    assert changes(run_state(then), config) == ["steps 4 → 6", "learner.lr 0.001 → 0.002"]
    notes = resumed(config, then, tmp_path).notes
    assert notes[0].startswith("resumed from ")
    assert notes[1] == "resumed with changed settings: steps 4 → 6, learner.lr 0.001 → 0.002"


def test_settings_that_one_side_lacks_are_listed_too(model: Path) -> None:
    config = run_config(model)
    then = run_state(config)
    del then.config["steps"]
    then.config["env"] |= {"options": {"width": 3}}  # type: ignore[operator]
    assert changes(then, config) == ["steps (none) → 4", "env.options.width 3 → (none)"]
    then.config["name"] = "other"
    assert len(changes(then, config)) == 2


def test_another_tokenizer_or_chat_template_is_told(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    config = run_config(tmp_path / "model")
    known = tokenizer_id(config.model.path)
    assert known == tokenizer_id(str(model))
    assert tokenizer_id("org/name") == ""
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    said = "has another tokenizer or chat template than the checkpoint's run had"
    assert said in resumed(config, config, tmp_path / "new", tokenizer=known).notes[-1]
    for unchanged in ("", tokenizer_id(config.model.path)):
        assert len(resumed(config, config, tmp_path / f"old{unchanged}", tokenizer=unchanged).notes) == 1


def test_one_of_another_version_is_passed_over(model: Path, tmp_path: Path) -> None:
    config = run_config(model).model_copy(update={"runs_dir": str(tmp_path)})
    writer = saver(tmp_path / "test" / "checkpoints")
    writer.save(1, run_state(config).to_json())
    writer.save(2, run_state(config).to_json() | {"unknown": 1})
    writer.check()
    found = resumption(config)
    assert found is not None
    assert found.path.name == "step-000001"
    assert "step-000002 is damaged and passed over: its run state is of another version" in found.notes[0]
    with pytest.raises(ConfigError, match="step-000002 is not a usable checkpoint: its run state is of another"):
        resumption(config.model_copy(update={"resume": str(tmp_path / "test" / "checkpoints" / "step-000002")}))


def test_contradictions_are_refused(model: Path, tmp_path: Path) -> None:
    lora = {"rank": 4, "alpha": 8.0}
    then = run_config(model, lora=lora)
    for change, said in {
        "rank": "learner.lora.rank=8 contradicts the checkpoint .* saved with learner.lora.rank=4: set it back",
        "alpha": "learner.lora.alpha=16.0 contradicts .* learner.lora.alpha=8.0",
        "targets": r"learner.lora.targets=\[q_proj\] contradicts .* learner.lora.targets=\[all-linear\]",
    }.items():
        value = {"rank": 8, "alpha": 16.0, "targets": ["q_proj"]}[change]
        with pytest.raises(ConfigError, match=said):
            resumed(run_config(model, lora=lora | {change: value}), then, tmp_path / change)
    half = then.model_copy(update={"model": then.model.model_copy(update={"dtype": "bfloat16"})})
    with pytest.raises(ConfigError, match=r"model\.dtype=bfloat16 contradicts .* model\.dtype=float32"):
        resumed(half, then, tmp_path / "dtype")
    save_micro(tmp_path / "other", seed=1)
    with pytest.raises(ConfigError, match=r"other is another model .* trained from, model\.path=.*give that one"):
        resumed(run_config(tmp_path / "other"), run_config(model), tmp_path / "model")


def test_a_model_is_known_by_its_content(model: Path, tmp_path: Path) -> None:
    for name, settings in {"same": {}, "other": {"seed": 1}, "shape": {"layers": 1}}.items():
        save_micro(tmp_path / name, **settings)
    assert model_id(str(tmp_path / "same")) == model_id(str(model))
    assert len({model_id(str(tmp_path / name)) for name in ("same", "other", "shape")}) == 3
    assert model_id("org/name") == "org/name"


def test_the_wandb_run_goes_on_under_the_same_name_only(model: Path, tmp_path: Path) -> None:
    config = run_config(model)
    found = resumed(config, config, tmp_path, wandb_run_id="k3v9x1qa")
    assert found.run_id("test") == "k3v9x1qa"
    assert found.run_id("fork") is None


def test_nothing_usable_is_one_sentence_before_the_start(model: Path, tmp_path: Path) -> None:
    config = run_config(model).model_copy(update={"runs_dir": str(tmp_path)})
    assert resumption(config) is None
    (path,) = make(tmp_path / "test" / "checkpoints", 1)
    with pytest.raises(ConfigError, match=r"resume=auto finds no usable checkpoint \(.*its run state is of another"):
        resumption(config)
    flip(path / RANK)
    with pytest.raises(ConfigError, match="resume=auto finds no usable checkpoint"):
        resumption(config)
