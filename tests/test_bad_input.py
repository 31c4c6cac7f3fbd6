"""What people get wrong, and the sentence that each fault gives: exit code 2, before any actor starts.

One table (`bad_data.py`, `bad_settings.py`, `bad_commands.py`), run through the real commands in a folder that is good
but for what a row changes. More on single overrides is in trainer/test_compose.py, on clusters in test_preflight.py.
"""

import tracemalloc
from pathlib import Path

import pytest
from bad_commands import COMMANDS
from bad_data import DATA
from bad_rows import CODE, GOOD, SHORT, Bad, gibibyte, lines, make, model_files, run, task
from bad_settings import SETTINGS

from envs.tasks import load_tasks
from trainer.compose import compose
from trainer.preflight import check_files
from trainer.run_place import room_note, room_problem

BAD = DATA | SETTINGS | COMMANDS


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `GOOD` is accepted, and where the test runs."""
    for folder in ("model", "export"):
        make(tmp_path, {f"{folder}/{name}": content for name, content in model_files().items()})
    (tmp_path / "train.jsonl").write_text(lines(*(task(number) for number in (1, 2, 3))))
    (tmp_path / "heldout.jsonl").write_text(lines(task(1)))
    (tmp_path / "corpus.jsonl").write_text(lines({"id": "1", "title": "Ulm", "text": "Ulm is a city."}))
    (tmp_path / "bad_code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", "hub")
    return tmp_path


@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
def test_a_fault_gives_its_sentence(bad: Bad, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(here, bad.files)
    code = run(bad.command, [*bad.good, *bad.args])
    shown = capsys.readouterr()
    says = bad.says
    for short, long in {**SHORT, "{here}": str(here)}.items():
        says = says.replace(short, long)
    assert (shown.err.rstrip("\n"), shown.out, code) == (says, "", 2)
    assert not any((here / "runs").glob("*/*")), "nothing was started"


def test_what_looks_odd_and_is_fine(here: Path) -> None:
    """The folder as it is; a byte order mark, Windows line ends and blank lines; a tokenizer without a pad token."""
    assert "pad_token" not in model_files()["tokenizer_config.json"]
    windows = lines(task(1), "", task(2), task(3)).replace("\n", "\r\n")
    make(here, {"train.jsonl": b"\xef\xbb\xbf" + windows.encode()})
    assert check_files(compose(GOOD)).train_tasks == 3


def test_a_long_line_is_refused_before_it_is_in_memory(tmp_path: Path) -> None:
    gibibyte(tmp_path / "tasks.jsonl")
    tracemalloc.start()
    with pytest.raises(ValueError, match="line 2: longer than 16,777,216 bytes"):
        load_tasks(tmp_path / "tasks.jsonl")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 2**20


def test_a_disk_without_room_for_the_policy(here: Path) -> None:
    mib = 2**20
    assert list(room_problem(compose(GOOD), free=7 * mib, needs=7 * mib)) == []
    assert list(room_problem(compose(GOOD), free=7 * mib, needs=7 * mib + 1)) == [
        "runs_dir=runs has 7 MiB left and the export of the policy takes 8: make room or choose another folder."
    ]


def test_a_disk_without_room_for_the_checkpoints_is_noted(here: Path) -> None:
    """The quickstart's 30 steps give three; with the two that stay there is one more while it is written."""
    needs = 3 * 12 * 10**9
    assert list(room_note(compose(GOOD), free=needs, parameters=10**9)) == []
    (note,) = room_note(compose(GOOD), free=needs - 1, parameters=10**9)
    assert note.startswith("Note: runs_dir=runs has 33 GiB left and 3 checkpoints take 34: ")
    for fewer in ("checkpoint.every=0", "checkpoint.keep=1", "steps=20"):
        assert list(room_note(compose([*GOOD, fewer]), free=needs - 1, parameters=10**9)) == []


def test_a_folder_that_cannot_be_written(here: Path) -> None:
    """Nobody can make files in /proc."""
    with pytest.raises(ValueError, match=r"^runs_dir=/proc/runs cannot be written \(/proc: .+\): it must be a folder"):
        check_files(compose([*GOOD, "runs_dir=/proc/runs"]))
