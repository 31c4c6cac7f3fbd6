"""What a run keeps of the picks: numbers of a step, lines of a forest file, and the page of a tree."""

import json
from math import inf

import pytest
from example_run import Grower, Words, build

from envs.types import EndReason
from rollout_workers.types import Ledger, Node, Pick, TaskGroup, Tree
from trainer.forest_file import read_forest, record_from_json
from trainer.metrics import collection_metrics
from trainer.pick_metrics import pick_metrics
from trainer.report import run_data
from trainer.run_folder import RunFolder


def group(*picks: Pick) -> TaskGroup:
    """One tree: 0 ── 1 ── 2, 2 ── 3 (leaf)."""
    task = Grower(Words(), 0, 0.5).group(0, 1, 0).task
    leaf = Node(parent=2, token_ids=(1,), logprobs=(0.0,), versions=(0,), end=EndReason.ANSWERED, score=1.0, reward=1.0)
    nodes = [Node(parent=-1), Node(parent=0, entropy=0.5), Node(parent=1), leaf]
    return TaskGroup(task=task, trees=(Tree(task_id=task.id, index=0, nodes=nodes, picks=list(picks)),))


def test_pick_metrics_by_hand():
    scored = Pick(scores=((0, 0.2), (1, 0.6), (2, -inf)), chosen=(1, 0, 2))
    drawn = Pick(scores=(), chosen=(0, 0, 2))
    assert pick_metrics([group(scored)]) == pytest.approx(
        {"tree/pick_score_mean": 0.4, "tree/pick_depth_mean": 1.0, "tree/pick_root_share": 1 / 3}
    )
    assert pick_metrics([group(drawn)]) == pytest.approx({"tree/pick_depth_mean": 2 / 3, "tree/pick_root_share": 2 / 3})
    both = pick_metrics([group(scored), group(drawn)])
    assert both["tree/pick_root_share"] == 0.5
    assert both["tree/pick_score_mean"] == pytest.approx(0.4), "picks without a score are not in its mean"
    assert pick_metrics([group()]) == {}
    assert collection_metrics([group(scored)], Ledger(), 1.0)["tree/pick_depth_mean"] == 1.0


def test_picks_and_entropies_survive_a_forest_file(tmp_path):
    words = Words()
    forest = [group(Pick(scores=((0, 0.25), (1, -inf)), chosen=(0, 1, 0)), Pick(scores=(), chosen=(2,)))]
    folder = RunFolder(tmp_path)
    folder.write_forest("step", 1, forest, words.decode)
    path = folder.forest_path("step", 1)
    assert [record.tree for record in read_forest(path)] == [forest[0].trees[0]]
    line = json.loads(path.read_text())
    assert line["picks"][0] == {"chosen": [0, 1, 0], "scores": [[0, 0.25], [1, None]]}
    del line["picks"]
    assert record_from_json(line).tree.picks == [], "a file from before picks were kept"


def test_the_report_holds_the_picks_of_each_round(tmp_path):
    data = run_data(build(tmp_path / "one", steps=10).path, 100_000)
    tree = data["forests"][-1]["tasks"][0]["trees"][0]
    assert [len(pick["chosen"]) for pick in tree["picks"]] == [1, 1, 1]
    for slot, pick in enumerate(tree["picks"], start=1):
        first = next(node for node in tree["nodes"] if node["slot"] == slot)
        assert pick["chosen"] == [first["parent"]]
        assert pick["chosen"][0] in [node for node, _ in pick["scores"]]
    json.dumps(data, allow_nan=False)
