from pathlib import Path

import pytest

from trainer import checkpoint


def make(root: Path, step: int, *, done: bool = True) -> Path:
    path = checkpoint.folder(root, step)
    path.mkdir(parents=True)
    if done:
        checkpoint.finish(path, {"step": step, "seen": ["a", "b"]})
    return path


def test_names() -> None:
    assert checkpoint.folder(Path("c"), 12) == Path("c/step-000012")
    assert checkpoint.step_of(Path("c/step-000012")) == 12
    with pytest.raises(ValueError, match="step-000012"):
        checkpoint.step_of(Path("c/last"))


def test_only_complete_ones_are_found(tmp_path: Path) -> None:
    assert checkpoint.find("auto", tmp_path / "none") is None
    nine, ten = make(tmp_path, 9), make(tmp_path, 10)
    make(tmp_path, 11, done=False)
    assert checkpoint.complete(tmp_path) == [nine, ten]
    assert checkpoint.find("auto", tmp_path) == ten
    assert checkpoint.find("never", tmp_path) is None
    assert checkpoint.find(str(nine), tmp_path) == nine
    with pytest.raises(ValueError, match="not a complete checkpoint"):
        checkpoint.find(str(checkpoint.folder(tmp_path, 11)), tmp_path)


def test_state_comes_back(tmp_path: Path) -> None:
    assert checkpoint.driver_state(make(tmp_path, 3)) == {"step": 3, "seen": ["a", "b"]}


def test_prune_keeps_the_newest_and_what_is_being_written(tmp_path: Path) -> None:
    first, interrupted, second, third = (
        make(tmp_path, 1),
        make(tmp_path, 2, done=False),
        make(tmp_path, 3),
        make(tmp_path, 4),
    )
    writing = make(tmp_path, 5, done=False)
    assert checkpoint.prune(tmp_path, 2) == [first, interrupted]
    assert second.exists()
    assert third.exists()
    assert writing.exists()
