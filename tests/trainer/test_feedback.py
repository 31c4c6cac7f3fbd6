"""Human feedback: what is queued, how labels join, and what a late one trains."""

import json
import math

import pytest
from typed_by_hand import PARENTS, chain, decision, group, queued, record, whole

from envs.decisions.settings import FeedbackSettings, LevelSettings
from trainer.config import LearnerConfig, LossConfig
from trainer.decisions.coefficients import all_coefficients
from trainer.decisions.feedback import Feedback, chosen_steps, is_chosen, joined, share_of
from trainer.decisions.feedback_files import (
    Label,
    Position,
    append_lines,
    label_line,
    new_labels,
    parsed_label,
    queue_line,
    queued_step,
    read_queue,
)
from trainer.decisions.late import LateStep, label_shares, total_of, with_late
from trainer.decisions.packing import TypedPlan
from trainer.decisions.routing import factors, routing_shares
from trainer.decisions.statistics import Running
from trainer.packing import pack_forest

LEVELS = LevelSettings()
STATISTICS = {name: Running(count=4, mean=0.5, squares=0.25) for name in PARENTS}

# What is queued


@pytest.mark.parametrize(("depth", "share"), [(0, 1.0), (1, 0.7), (2, 0.4), (3, 0.4)])
def test_shares_by_depth_are_met_within_three_standard_errors(depth, share):
    settings, n = FeedbackSettings(), 4000
    found = sum(is_chosen(settings, f"train-1/t{i}/0/1", "any", depth, seed=11) for i in range(n))
    assert share_of(settings, depth) == share
    assert abs(found / n - share) <= 3 * math.sqrt(share * (1 - share) / n)


def forest(tasks: int):
    return [group(f"t{i}", chain(f"t{i}", *(record(name, 0.75) for name in PARENTS))) for i in range(tasks)]


def steps_of(settings, seed=0, tasks=30, step=3):
    found = forest(tasks)
    credit = [whole(one.trees) for one in found]
    return list(
        chosen_steps(found, credit, STATISTICS, settings, step=step, seed=seed, decode=lambda ids: f"<{list(ids)}>")
    )


def test_the_same_seed_queues_the_same_steps():
    first, again, other = (steps_of(decision(), seed) for seed in (5, 5, 6))
    assert first == again
    assert {one.id for one in first} != {one.id for one in other}
    by_node = {name: sum(one.record.node == name for one in first) for name in PARENTS}
    assert by_node["intent"] == 30 > by_node["retrieval"] > by_node["reply"] > 0
    assert len({one.id for one in first}) == len(first)


def test_focus_queues_the_named_nodes_only():
    found = steps_of(decision(feedback={"enabled": True, "focus": ["reply"], "shares": [1.0]}))
    assert [one.record.node for one in found] == ["reply"] * 30


def test_a_queued_step_has_what_people_and_training_need():
    first = steps_of(decision(feedback={"shares": [1.0]}))[1]
    assert first.id == "train-3/t0/0/2"
    assert (first.depth, first.instruction, first.task) == (1, "Do retrieval.", "t0")
    assert (first.prompt, first.prompt_ids) == ("<[101]>", (101,))
    assert (first.token_ids, first.logprobs, first.versions) == ((7, 8), (-0.5, -0.5), (3, 3))
    assert first.total == pytest.approx((0.75 - 0.5) / 0.25)  # mean 0.5, std 0.25; no rules, no label


def test_steps_that_an_expert_judges_and_steps_without_loss_are_not_queued():
    tree = chain("t", record("intent", expert=0.3), record("retrieval"), record("reply"))
    credit = [whole([tree])]
    del credit[0][0].values[3]
    found = chosen_steps(
        [group("t", tree)],
        credit,
        {},
        decision(feedback={"shares": [1.0]}),
        step=1,
        seed=0,
        decode=str,
    )
    assert [one.record.node for one in found] == ["retrieval"]


# What a late label is worth


def test_the_difference_that_a_label_makes_on_paper():
    step = queued()  # automatic 0.5, mean 0.5, std 0.25
    assert total_of(step, LEVELS) == 0.0
    assert total_of(step, LEVELS, 1.0) == pytest.approx(((0.6 * 0.5 + 0.3 * 1) / 0.9 - 0.5) / 0.25)
    assert total_of(step, LEVELS, 0.5) == pytest.approx(0.0)
    assert total_of(step, LEVELS, 0.0) == pytest.approx(((0.6 * 0.5) / 0.9 - 0.5) / 0.25)


def test_a_label_where_there_is_no_other_level_counts_from_one_half():
    alone = queued(automatic=None, statistics=Running())
    assert total_of(alone, LEVELS) == 0.0
    assert total_of(alone, LEVELS, 1.0) == 0.5
    assert total_of(alone, LEVELS, 0.0) == -0.5


def test_a_label_where_all_rewards_were_equal_counts_as_it_is():
    equal = queued(statistics=Running(count=4, mean=0.5, squares=0.0))
    assert total_of(equal, LEVELS) == 0.0
    assert total_of(equal, LEVELS, 1.0) == pytest.approx((0.6 * 0.5 + 0.3) / 0.9 - 0.5)


def test_rules_stay_beside_a_label():
    step = queued_step(json.loads(queue_line(queued())))
    broken = json.loads(queue_line(step))
    broken["reward"]["penalty"] = -10.0
    step = queued_step(broken)
    raw = (0.6 * 0.5 + 0.3) / 0.9
    assert total_of(step, LEVELS, 1.0) == pytest.approx(0.9 * (raw - 0.5) / 0.25 + 0.1 * -10)


def test_a_late_step_is_a_tree_of_its_own_with_the_difference_as_advantage():
    late = [LateStep(step=queued(), difference=0.7), LateStep(step=queued("b"), difference=0.0)]
    found = forest(4)
    together, credit = with_late(found, [whole(one.trees) for one in found], late)
    assert [one.task.id for one in together] == ["t0", "t1", "t", "t2", "t3"]
    assert [len(per_tree) for per_tree in credit] == [1] * 5
    (tree,) = together[2].trees
    assert tree.typed
    assert tree.nodes[0].observation_ids == (100, 101)
    assert (tree.nodes[1].token_ids, tree.nodes[1].logprobs, tree.nodes[1].versions) == ((7, 8), (-0.5, -0.25), (2, 2))
    assert tree.nodes[1].record.node == "intent"
    assert credit[2][0].values == {1: 0.7}
    assert credit[2][0].leaves == (1,)


def test_a_late_step_is_packed_with_its_difference_and_the_log_probabilities_of_then():
    """retrieval: two steps of the forest and the late one, 0.782 / (3 steps * 2 tokens) each."""
    settings, loss = decision(), LossConfig(kl_coef=0.0)
    found = forest(2)
    late = [LateStep(step=queued(node="retrieval", token_ids=(17, 18)), difference=-0.5)]
    together, credit = with_late(found, [whole(one.trees) for one in found], late)
    routed = routing_shares(settings, {})
    plan = TypedPlan(
        coefficients=all_coefficients(settings, loss),
        factors=factors(settings, routed),
        shares=routed,
        has_adapter=(True,) * 3,
    )
    packed = pack_forest(together, credit, loss, LearnerConfig(), 64, version=4, typed=plan)
    (pack,) = packed.mini_batches[0][0]
    assert list(pack.ids) == [100, 101, 17, 18], "steps without advantage are not laid out"
    assert list(pack.negative) == pytest.approx([0, 0, *[-0.5 * 0.782 / (3 * 2)] * 2])
    assert list(pack.old_logprobs) == [0, 0, -0.5, -0.25]
    assert list(pack.voice) == [1] * 4
    assert not pack.is_current[2:].any(), "sampled by weights of long ago"


def test_labels_are_told_as_a_share_of_the_nodes_steps():
    late = [
        LateStep(step=queued(str(i), node=node), difference=1.0) for i, node in enumerate(["intent", "intent", "reply"])
    ]
    assert label_shares(late, {"intent": 8.0}) == {"intent": 0.2, "reply": 1.0}


# Joining


def test_labels_are_late_expired_unknown_or_known_already():
    known = {"a": queued("a", step=3), "b": queued("b", step=2), "c": 1, "d": queued("d", step=3)}
    labels = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.25, "x": 0.5, "y": 0.5}
    found = joined(labels, known, {"y"}, {"d": 0.25}, decision(feedback={"max_age": 2}), step=5)
    assert [(one.step.id, one.difference) for one in found.late] == [("a", pytest.approx(2 / 3))]
    assert found.trained == {"a": 1.0}
    assert found.expired == 2
    assert found.unknown == ("x",)
    assert found.waiting == {"y": 0.5}


def test_another_label_for_a_trained_step_trains_what_it_changes():
    found = joined({"a": 0.0}, {"a": queued("a")}, (), {"a": 1.0}, decision(), step=4)
    assert found.late[0].difference == pytest.approx(total_of(queued(), LEVELS, 0.0) - total_of(queued(), LEVELS, 1.0))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "feedback"


def label(folder, *pairs):
    append_lines(folder / "labels.jsonl", [label_line(Label(id=id, label=value)) for id, value in pairs])


def numbers(heard):
    return {name.removeprefix("decision/feedback/"): value for name, value in heard.metrics.items()}


def test_labels_that_come_steps_later_join_by_id(folder):
    feedback, settings = Feedback(folder, seed=0), decision(feedback={"max_age": 2})
    for step in (1, 2):
        assert feedback.hear(settings, step).late == ()
        assert feedback.queue([queued(f"train-{step}/t/0/1", step)]) == {"decision/feedback/queued": 1.0}
    label(folder, ("train-1/t/0/1", 1.0))
    heard = feedback.hear(settings, 3)
    assert [one.step.id for one in heard.late] == ["train-1/t/0/1"]
    assert numbers(heard) == {"labelled": 1, "late": 1, "expired": 0, "unknown": 0}
    assert feedback.hear(settings, 3).late == (), "each label trains once"
    label(folder, ("train-2/t/0/1", 1.0), ("train-1/t/0/1", 1.0))
    assert numbers(feedback.hear(settings, 5)) == {"labelled": 2, "late": 0, "expired": 1, "unknown": 0}


def test_unknown_ids_are_all_listed_once_and_ignored(folder):
    feedback = Feedback(folder, seed=0)
    feedback.queue([queued()])
    label(folder, *((f"nobody-{i}", 1.0) for i in range(7)), ("train-3/t/0/1", 1.0))
    heard = feedback.hear(decision(), 4)
    assert (len(heard.late), numbers(heard)["unknown"]) == (1, 7)
    (note,) = heard.notes
    assert "7 labels are for steps that were never queued" in note
    assert note.endswith(f"'nobody-4' and 2 more, all in {folder / 'unknown.jsonl'}")
    assert "nobody-5" not in note
    label(folder, ("nobody-1", 0.0), ("nobody-9", 0.5))
    (note,) = feedback.hear(decision(), 5).notes
    assert note.endswith("ignored: 'nobody-9'")
    listed = [json.loads(line) for line in (folder / "unknown.jsonl").read_text().splitlines()]
    assert listed == [*({"id": f"nobody-{i}", "label": 1.0} for i in range(7)), {"id": "nobody-9", "label": 0.5}]
    again = Feedback(folder, seed=0)
    assert (again.hear(decision(), 6).notes, numbers(again.hear(decision(), 6))["unknown"]) == ((), 0)
    assert len((folder / "unknown.jsonl").read_text().splitlines()) == 8, "a resumed run lists none of them again"


def test_wrong_lines_are_named_with_file_and_line_and_the_rest_is_taken(folder):
    feedback = Feedback(folder, seed=0)
    feedback.queue([queued()])
    append_lines(
        folder / "labels.jsonl", ['{"id": "a", "label": 2}', "no", label_line(Label(id="train-3/t/0/1", label=1))]
    )
    heard = feedback.hear(decision(), 4)
    assert len(heard.late) == 1
    assert heard.notes == (
        f"{folder / 'labels.jsonl'} line 1: label must be a number from 0 to 1",
        f"{folder / 'labels.jsonl'} line 2: not JSON",
    )


def test_a_resumed_run_goes_on_where_the_checkpoint_was(folder):
    """Labels read after the checkpoint train again; steps that turn out differently get an id of their own."""
    settings = decision()
    first = Feedback(folder, seed=0)
    first.queue([queued("train-1/t/0/1", 1)])
    label(folder, ("train-1/t/0/1", 1.0))
    first.hear(settings, 2)
    first.queue([queued("train-2/t/0/1", 2)])
    saved = json.loads(json.dumps(first.state.to_json()))
    first.hear(settings, 3)
    first.queue([queued("train-3/t/0/1", 3), queued("train-3/t/0/2", 3), queued("train-3/t/0/3", 3)])
    label(folder, ("train-2/t/0/1", 0.0), *((f"train-3/t/0/{i}", 1.0) for i in (1, 2, 3)))
    assert [one.step.id for one in first.hear(settings, 4).late] == [
        *("train-2/t/0/1", "train-3/t/0/1", "train-3/t/0/2", "train-3/t/0/3")
    ]
    before = (folder / "queue.jsonl").read_text()

    second = Feedback(folder, seed=0)
    second.restore(saved, step=2)
    heard = second.hear(settings, 3)
    assert [one.step.id for one in heard.late] == ["train-2/t/0/1"]
    assert numbers(heard) == {"labelled": 4, "late": 1, "expired": 0, "unknown": 0}
    assert second.queue([queued("train-3/t/0/1", 3), queued("train-3/t/0/2", 3, token_ids=(7, 9))]) == {
        "decision/feedback/queued": 2.0
    }
    added = (folder / "queue.jsonl").read_text().removeprefix(before)
    assert [json.loads(line)["id"] for line in added.splitlines()] == ["train-3/t/0/2~2"]
    heard = second.hear(settings, 4)
    assert [one.step.id for one in heard.late] == ["train-3/t/0/1"], "a label is for what the step said then"
    assert numbers(heard)["expired"] == 2
    assert second.state.waiting == {}
    third = Feedback(folder, seed=0)
    third.restore(json.loads(json.dumps(second.state.to_json())), step=3)
    assert third.hear(settings, 4).late == ()


# Files


def test_queue_lines_come_back_whole(folder):
    step = queued()
    append_lines(folder / "queue.jsonl", [queue_line(step), "{}", queue_line(queued("b"))])
    with (folder / "queue.jsonl").open("a") as file:
        file.write('{"id": "half')
    assert list(read_queue(folder / "queue.jsonl")) == [step, queued("b")]
    append_lines(folder / "queue.jsonl", [queue_line(queued("c"))])
    assert [one.id for one in read_queue(folder / "queue.jsonl")] == [step.id, "b", "c"]


def test_labels_are_read_as_they_come(folder):
    path = folder / "labels.jsonl"
    assert new_labels(path, Position()).labels == ()
    folder.mkdir()
    path.write_text('{"id": "a", "label": 1}\n{"id": "b", "label": 0.5}')
    first = new_labels(path, Position())
    assert [one.id for one in first.labels] == ["a", "b"], "a whole object needs no newline"
    append_lines(path, [label_line(Label(id="c", label=0.25, note="ok"))])
    with path.open("a") as file:
        file.write("x" * 70_000 + '\n\n{"id": "d", "lab')
    second = new_labels(path, first.position)
    assert second.labels == (Label(id="c", label=0.25, note="ok"),)
    assert second.problems == (f"{path} line 4: longer than 65,536 bytes",)
    with path.open("a") as file:
        file.write('el": true}\n')
    third = new_labels(path, second.position)
    assert third.problems == (f"{path} line 6: label must be a number from 0 to 1",)
    path.write_text('{"id": "e", "label": 0}\n')
    assert [one.id for one in new_labels(path, third.position).labels] == ["e"], "a shorter file is another file"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "accepted is an object"),
        ({"id": "a"}, "accepted is an object"),
        ({"id": "a", "label": 1, "more": 1}, "accepted is an object"),
        ({"id": "", "label": 1}, "id must be"),
        ({"id": 3, "label": 1}, "id must be"),
        ({"id": "a" * 1001, "label": 1}, "id must be"),
        ({"id": "a", "label": "1"}, "label must be"),
        ({"id": "a", "label": True}, "label must be"),
        ({"id": "a", "label": -0.1}, "label must be"),
        ({"id": "a", "label": math.nan}, "label must be"),
        ({"id": "a", "label": 1, "note": 3}, "note must be"),
        ({"id": "a", "label": 1, "note": "n" * 4001}, "note must be"),
    ],
)
def test_what_is_no_label_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        parsed_label(value)
