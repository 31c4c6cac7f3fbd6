"""`python -m trainer.gate`: labels, the split by task, a separable toy set, bad files; and what a gate saves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from envs.decisions.gate import MOST_WEIGHTS, Gate
from envs.decisions.settings import DecisionSettings
from envs.decisions.tree import Declared
from envs.decisions.types import Gating, StepRecord
from envs.types import Message, Task
from rollout_workers.types import Ledger, Node, TaskGroup, Tree
from trainer.decisions.gate_data import Example, read_labels, split_by_task
from trainer.decisions.gate_savings import GateSavings
from trainer.decisions.gate_training import Counts
from trainer.forest_file import forest_text, record_forest
from trainer.gate import main, table

INTENTS = ("ask", "refund", "thank", "mixed")
NEEDS = {"ask": {"lookup"}, "refund": {"lookup", "policy"}, "thank": set(), "mixed": {"policy"}}
CHILDREN = ("lookup", "policy")


def settings(**gate: object) -> DecisionSettings:
    output = {"type": "object", "properties": {"intent": {"enum": list(INTENTS)}}}
    nodes = [{"name": "intent", "instruction": "?", "output_schema": output}]
    nodes += [{"name": name, "parent": "intent", "instruction": "?", "output_schema": output} for name in CHILDREN]
    nodes += [{"name": "reply", "parent": "lookup", "instruction": "?", "output_schema": output}]
    return DecisionSettings(world="w", nodes=nodes, gate=gate)


def answer(place: int) -> tuple[str, tuple[tuple[str, float], ...]]:
    """An intent by turns, of which the root was about 70 % sure."""
    intent, sure = INTENTS[place % 4], 0.6 + 0.02 * (place % 10)
    return intent, tuple((f"intent={name}", sure if name == intent else (1 - sure) / 3) for name in INTENTS)


def write_run(folder: Path, tasks: int = 40, *, meta: bool = False) -> Path:
    """A run folder with one tree per task, each with an answer of the root and one step below it."""
    (folder / "forest").mkdir(parents=True)
    OmegaConf.save(OmegaConf.create({"decision": settings().model_dump(mode="json")}), folder / "config.yaml")
    groups = []
    for place in range(tasks):
        intent, odds = answer(place)
        record = StepRecord(node="intent", input="{}", output=json.dumps({"intent": intent}), odds=odds)
        nodes = [
            Node(parent=-1),
            Node(parent=0, record=record),
            Node(parent=1, record=StepRecord(node="policy", input="{}")),
        ]
        task = Task(
            id=f"t{place}", prompt=(Message(role="user", content="?"),), truth=("x",),
            meta={"needs": sorted(NEEDS[intent])} if meta else {},
        )  # fmt: skip
        groups.append(TaskGroup(task=task, trees=(Tree(task_id=task.id, index=0, nodes=nodes, typed=True),)))
    text = forest_text(record_forest("step", 1, groups, lambda ids: ""))
    (folder / "forest" / "step-000001.jsonl").write_text(text, encoding="utf-8")
    return folder


def write_labels(path: Path, *lines: object, tasks: int = 40) -> Path:
    known = [{"id": f"t{place}", "needs": sorted(NEEDS[answer(place)[0]])} for place in range(tasks)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*known, *lines]), encoding="utf-8")
    return path


def test_a_separable_set_is_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = write_run(tmp_path / "run"), tmp_path / "new" / "gate.safetensors"
    labels = write_labels(tmp_path / "labels.jsonl", {"id": "elsewhere", "needs": ["lookup"]})
    assert main([str(run), "--labels", str(labels), "--out", str(out), "--hidden", "8"]) == 0
    said = capsys.readouterr().out
    assert "ignored 1 labels of tasks that no tree has: elsewhere\n" in said
    assert "32 answers to train on, 8 of other tasks to measure on, threshold 0.5" in said
    (last,) = [line for line in said.splitlines() if line.startswith("all")]
    assert last.split()[3:5] == ["1.000", "1.000"], "F1, and share of the unneeded skipped, on tasks not trained on"
    assert "run all" in said
    gate = Gate.from_file(out)
    assert gate.weights == 8 * 5 + 2 * 9 < MOST_WEIGHTS
    for place in range(4):
        intent, odds = answer(place)
        assert {gating.node for gating in gate.decide(odds) if gating.runs} == NEEDS[intent]


def test_tasks_may_bring_their_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", meta=True)
    assert main([str(run), "--out", str(tmp_path / "g"), "--threshold", "0.3"]) == 0
    first = capsys.readouterr().out
    assert "threshold 0.3" in first
    before = Gate.from_file(tmp_path / "g")
    file = run / "forest" / "step-000001.jsonl"
    assert main([str(file), "--out", str(tmp_path / "g")]) == 0
    assert Gate.from_file(tmp_path / "g") == before, "the same seed gives the same gate; a file is as good as its run"


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = write_run(tmp_path / "run"), str(tmp_path / "g")
    alone = tmp_path / "alone" / "forest" / "step-000001.jsonl"
    alone.parent.mkdir(parents=True)
    alone.write_bytes((run / "forest" / "step-000001.jsonl").read_bytes())

    def labels(*lines: object) -> list[str]:
        folder = tmp_path / f"labels-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return ["--labels", str(write_labels(folder / "l.jsonl", *lines, tasks=2))]

    wrong = {
        "neither a forest file nor a run folder": [str(tmp_path / "nowhere")],
        "no config.yaml lies beside": [str(alone)],
        "l.jsonl line 3: a label is": [str(run), *labels({"id": "t9"})],
        "l.jsonl line 3: needs must be a list of children of the root (lookup, policy), not [\"reply\"]": [
            str(run), *labels({"id": "t9", "needs": ["reply"]})
        ],
        "l.jsonl line 3: task 't0' has a label already": [str(run), *labels({"id": "t0", "needs": []})],
        "no.jsonl cannot be read": [str(run), "--labels", str(tmp_path / "no.jsonl")],
        "needs labelled answers of at least 2 tasks, not of 0": [str(run)],
        "gives 70,002 weights; a gate has at most 50,000": [str(run), "--hidden", "10000"],
        "cannot be written": [str(run), *labels(), "--out", str(run)],
    }  # fmt: skip
    for sentence, arguments in wrong.items():
        assert main([*arguments, *([] if "--out" in arguments else ["--out", out])]) == 2
        said = capsys.readouterr().err
        assert sentence in said, said
        assert said.count("\n") == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("g") or path.suffix == ".part"]


def test_labels_are_read(tmp_path: Path) -> None:
    path = write_labels(tmp_path / "l.jsonl", {"id": "é", "needs": []}, tasks=1)
    assert read_labels(path, CHILDREN) == {"t0": frozenset({"lookup"}), "é": frozenset()}


def test_no_task_is_on_both_sides() -> None:
    examples = [Example(task_id=f"t{place // 3}", odds=(), needs=frozenset()) for place in range(30)]
    train, held = split_by_task(examples, 0.2, seed=1)
    assert (len(train), len(held)) == (24, 6)
    assert not {example.task_id for example in train} & {example.task_id for example in held}


def test_scores_on_paper() -> None:
    """6 right, 2 needless, 1 missed, 6 spared: precision 6/8, recall 6/7, F1 12/15."""
    one, other = Counts(right=4, needless=2), Counts(right=2, missed=1, spared=6)
    whole = one.plus(other)
    assert (whole.precision, whole.recall, whole.f1) == (0.75, pytest.approx(6 / 7), 0.8)
    assert Counts().f1 == Counts().precision == Counts().recall == 1.0
    assert (whole.spared_share, Counts().spared_share) == (6 / 8, 1.0)
    assert whole.running_all == Counts(right=7, needless=8)
    *_, all_, trivial = table({"a": one, "b": other})
    assert all_.split() == ["all", "0.750", "0.857", "0.800", "0.750", "7"]
    assert trivial.split() == ["run", "all", "0.467", "1.000", "0.636", "0.000", "7"], "F1 2*7/(2*7 + 8)"


def stepped(name: str, parent: int, sampled: int, prompt: int, **gating: bool) -> Node:
    gated = tuple(Gating(node=node, probability=0.5, runs=runs) for node, runs in gating.items())
    record = StepRecord(node=name, input="{}", gating=gated)
    return Node(parent=parent, token_ids=(1,) * sampled, observation_ids=(2,) * prompt, record=record)


def tree(*nodes: Node) -> TaskGroup:
    task = Task(id="t", prompt=(Message(role="user", content="?"),), truth=("x",))
    root = Node(parent=-1, observation_ids=(2,) * 10)
    return TaskGroup(task=task, trees=(Tree(task_id="t", index=0, nodes=[root, *nodes], typed=True),))


def test_what_a_gate_saves() -> None:
    """A lookup takes 20 + 6 tokens, the reply below it 30 + 4; 2 s of engine time are 0.1 s per sampled token.

    One of two trees skips the lookup, and with it the reply: 60 tokens and 1 s.
    """
    ran = tree(
        stepped("intent", 0, 5, 20, lookup=True, policy=True),
        stepped("lookup", 1, 6, 30), stepped("reply", 2, 4, 0),
    )  # fmt: skip
    skipped = tree(stepped("intent", 0, 5, 0, lookup=False, policy=True))
    ledger = Ledger(sampled_tokens=20, engine_busy_s=2.0)
    savings = GateSavings().after([ran, skipped], ledger)
    metrics = savings.metrics([ran, skipped], Declared(settings()))
    assert metrics == pytest.approx(
        {"decision/gate/run_share": 0.75, "decision/gate/saved_tokens": 60.0, "decision/gate/saved_s": 1.0}
    )
    again = GateSavings.from_json(json.loads(json.dumps(savings.to_json())))
    assert again == savings
    later = replace(again).metrics([skipped, skipped], Declared(settings()))
    assert later["decision/gate/saved_tokens"] == 120.0, "nodes that no longer run still have their running means"


def test_without_a_gate_there_is_nothing_to_tell() -> None:
    forest = [tree(stepped("intent", 0, 5, 0))]
    assert GateSavings().after(forest, Ledger()).metrics(forest, Declared(settings())) == {}
