import json

import pyarrow
import pyarrow.parquet
import pytest

from envs.convert import main
from envs.tasks import load_tasks
from envs.types import Message, Task

ULM = {"id": "train_0", "question": "Where is Ulm?", "golden_answers": ["Germany", "DE"], "metadata": {"level": "easy"}}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(ULM) + "\n")
    rows = [{"q": "Where is Lyon?", "reward": {"target": ["France"]}}, {"q": "And Bonn?", "reward": {"target": ["x"]}}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "b.parquet")
    return tmp_path


def test_questions_with_golden_answers_become_tasks(files, capsys):
    out = files / "new" / "train.jsonl"
    assert main([str(out), f"one={files}/a.jsonl", f"two={files}/a.jsonl"]) == 0
    assert capsys.readouterr().out == f"Wrote 2 tasks to {out}.\n"
    prompt = (Message(role="user", content="Where is Ulm?"),)
    first, second = load_tasks(out)
    assert first == Task(id="one/train_0", prompt=prompt, truth=("Germany", "DE"), meta={"source": "one"})
    assert second.id == "two/train_0"


def test_fields_have_any_name_and_ids_are_counted_where_there_are_none(files):
    out = files / "train.jsonl"
    assert main([str(out), f"two={files}/b.parquet", "--question", "q", "--answers", "reward.target"]) == 0
    assert [(task.id, task.truth) for task in load_tasks(out)] == [("two/1", ("France",)), ("two/2", ("x",))]


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (["a.jsonl"], "'a.jsonl' is no input: write NAME=FILE"),
        (["b=b.parquet"], "b.parquet row 1: there is no field 'question'; see --question and --answers"),
        (["a=a.jsonl", "a=a.jsonl"], "id 'a/train_0' is already used in line 1"),
        (["a=nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["a=a.csv"], "accepted: .jsonl, .parquet"),
    ],
)
def test_what_cannot_be_converted_is_one_sentence_and_leaves_no_file(files, monkeypatch, capsys, inputs, sentence):
    monkeypatch.chdir(files)
    assert main(["out.jsonl", *inputs]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert sentence in shown
    assert shown.count("\n") == 1
    assert sorted(path.name for path in files.iterdir()) == ["a.jsonl", "b.parquet"]
