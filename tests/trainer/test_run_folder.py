import json
import math
from dataclasses import replace

import pytest
from example_run import HOSTILE, Grower, Words, hostile_group

from envs.masking import masked
from envs.types import EndReason
from rollout_workers.types import Ledger, Node
from trainer.advantages import advantages
from trainer.forest_file import read_forest, token_pieces
from trainer.run_folder import RunFolder, library_versions, masked_config, read_metrics


def test_layout(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "one")
    assert folder.name == "one"
    assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoints", "export", "forest", "ledger", "wandb"]
    assert folder.forest_path("eval", 12) == folder.path / "forest" / "eval-000012.jsonl"


def test_metrics_survive_a_killed_writer(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append_metrics(1, {"a/x": 1, "a/y": 0.5})
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 2, "a/x": 7')
    assert read_metrics(folder.metrics_file) == {1: {"a/x": 1, "a/y": 0.5}}
    RunFolder(tmp_path).append_metrics(2, {"a/x": 3})
    assert read_metrics(folder.metrics_file) == {1: {"a/x": 1, "a/y": 0.5}, 2: {"a/x": 3}}
    assert len(folder.metrics_file.read_text().splitlines()) == 2


def test_metrics_of_one_step_are_merged_and_a_resumed_run_drops_what_came_later(tmp_path):
    folder = RunFolder(tmp_path)
    for step, value in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0)):
        folder.append_metrics(step, {"a/x": value})
    folder.append_metrics(2, {"a/y": 5})
    assert read_metrics(folder.metrics_file) == {1: {"a/x": 1.0}, 2: {"a/x": 20.0, "a/y": 5}}


def test_metrics_without_a_number_become_null(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append_metrics(1, {"a/x": math.nan, "a/y": -math.inf})
    assert json.loads(folder.metrics_file.read_text()) == {"step": 1, "a/x": None, "a/y": None}


def test_metrics_of_no_file(tmp_path):
    assert read_metrics(tmp_path / "nothing.jsonl") == {}


def test_secrets_are_masked_and_token_counts_are_not(tmp_path):
    config = {
        "api_key": "abc",
        "limits": {"max_turn_tokens": 64, "key": "k"},
        "env": {"hubToken": "t", "url": "http://me:pw@host:80/x", "tokenizer": "models/tiny", "empty_key": ""},
        "secrets_of": ["fine"],
        "auth": {"user": "me", "retries": 3},
    }
    assert masked_config(config) == {
        "api_key": "***",
        "limits": {"max_turn_tokens": 64, "key": "***"},
        "env": {"hubToken": "***", "url": "http://***@host:80/x", "tokenizer": "models/tiny", "empty_key": ""},
        "secrets_of": ["fine"],
        "auth": {"user": "***", "retries": 3},
    }
    folder = RunFolder(tmp_path)
    folder.write_config(config)
    assert "abc" not in folder.config_file.read_text()
    assert masked("plain") == "plain"


def test_summary_is_replaced_whole(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_summary({"steps": 1, "eval": {"before": {"success": math.nan}}})
    folder.write_summary({"steps": 2})
    assert json.loads(folder.summary_file.read_text()) == {"steps": 2}
    assert not list(tmp_path.glob("*.part"))


def test_versions_name_every_library():
    versions = library_versions()
    assert list(versions) == ["torch", "vllm", "ray", "deepspeed", "transformers", "espalier"]
    assert versions["ray"][0].isdigit()


def test_forest_round_trip(tmp_path):
    words = Words()
    grower = Grower(words, 3, 0.5)
    forest = [grower.group(2, 4, expansions=3), hostile_group(words)]
    credit = [advantages(group) for group in forest]
    folder = RunFolder(tmp_path)
    written = folder.write_forest("step", 4, forest, words.decode, credit)
    loaded = read_forest(folder.forest_path("step", 4))
    assert loaded == written
    assert [record.tree for record in loaded] == [tree for group in forest for tree in group.trees]
    assert loaded[0].task == forest[0].task
    assert loaded[2].texts[1].observation == HOSTILE
    assert [record.ledger for record in loaded] == [forest[0].ledger, None, forest[1].ledger]
    for number, record in enumerate(loaded[:2]):
        leaves = {i: text.advantage for i, text in enumerate(record.texts) if text.advantage is not None}
        assert leaves == credit[0][number].values


def test_what_each_task_cost_is_a_line(tmp_path):
    folder, words = RunFolder(tmp_path), Words()
    forest = [hostile_group(words), replace(hostile_group(words), ledger=Ledger(requests=3, engine_busy_s=0.5))]
    folder.write_ledgers("eval", 12, forest)
    first, second = map(json.loads, (tmp_path / "ledger" / "eval-000012.jsonl").read_text().splitlines())
    assert second == {"task": forest[1].task.id, "requests": 3, "engine_busy_s": 0.5}
    assert Ledger(**{name: value for name, value in first.items() if name != "task"}) == forest[0].ledger


def test_forest_tells_why_a_branch_failed(tmp_path):
    words = Words()
    group = hostile_group(words)
    note = "RuntimeError: the world broke on caf\udce9"
    nodes = [*group.trees[0].nodes, Node(parent=0, end=EndReason.ENV_ERROR, note=note, slot=9)]
    failed = replace(group, trees=(replace(group.trees[0], nodes=nodes),))
    folder = RunFolder(tmp_path)
    folder.write_forest("step", 1, [failed], words.decode)
    (record,) = read_forest(folder.forest_path("step", 1))
    assert record.tree.nodes[-1].note == note


def test_forest_keeps_whole_tasks_up_to_the_limit(tmp_path):
    words = Words()
    grower = Grower(words, 3, 0.5)
    forest = [grower.group(number, 4, expansions=1) for number in range(4)]
    records = RunFolder(tmp_path).write_forest("eval", 4, forest, words.decode, limit=3)
    assert [(record.task.id, record.tree.index) for record in records] == [
        (group.task.id, index) for group in forest[:2] for index in (0, 1)
    ]


def test_forest_forgives_a_half_line_and_names_a_wrong_one(tmp_path):
    words = Words()
    folder = RunFolder(tmp_path)
    folder.write_forest("step", 1, [hostile_group(words)], words.decode)
    path = folder.forest_path("step", 1)
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + whole[:100], encoding="utf-8")
    assert len(read_forest(path)) == 1
    path.write_text(whole + '{"kind": "step"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"step-000001.jsonl, line 2: not a tree"):
        read_forest(path)


def test_forests_without_a_ledger_or_with_a_count_more_are_read(tmp_path):
    words = Words()
    folder = RunFolder(tmp_path)
    group = Grower(words, 3, 0.5).group(0, 1, 0, trees=1)
    folder.write_forest("step", 1, [group], words.decode)
    path = folder.forest_path("step", 1)
    line = json.loads(path.read_text(encoding="utf-8"))
    assert line["ledger"]["trees"] == 1
    assert "requests" not in line["ledger"], "counts of 0 take no room"
    old = {name: value for name, value in line.items() if name != "ledger"}
    new = {**line, "ledger": {**line["ledger"], "of_tomorrow": 3}}
    for written, ledger in ((old, None), (new, group.ledger)):
        path.write_text(json.dumps(written), encoding="utf-8")
        assert read_forest(path)[0].ledger == ledger
    path.write_text(json.dumps({**line, "ledger": {"trees": "many"}}), encoding="utf-8")
    with pytest.raises(ValueError, match="a ledger holds numbers only"):
        read_forest(path)


def test_lone_surrogates_are_kept(tmp_path):
    folder = RunFolder(tmp_path)
    grower = Grower(Words(), 3, 0.5)
    records = folder.write_forest("step", 1, [grower.group(0, 1, 0, trees=1)], lambda ids: "\ud800")
    assert read_forest(folder.forest_path("step", 1)) == records


def test_pieces_join_to_the_text_when_tokens_end_inside_characters():
    words = Words()
    text = "go 日本 now"
    ids = words.encode(text)
    pieces = token_pieces(ids, words.decode(ids), words.decode, lambda token_id: words.decode((token_id,)))
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text
    assert pieces == ["go", " ", "", "", "日", "", "", "本", " now"]


def test_pieces_of_a_tokenizer_that_strips_the_leading_space():
    def decode(ids):
        return "".join((" in", " Ulm", ".")[i] for i in ids).removeprefix(" ")

    assert token_pieces((0, 1, 2), "in Ulm.", decode, lambda i: decode((i,))) == ["in", " Ulm", "."]


def test_no_pieces_when_the_text_changes_as_it_grows():
    def decode(ids):
        return "ab" if len(ids) == 2 else "X"

    assert token_pieces((0, 1), "ab", decode, lambda i: decode((i,))) == []
