"""Checks before the start: model folder, task files, corpus, and the cluster's resources."""

import json
import os
import subprocess
import sys

import pytest

from trainer.compose import CONFIG_DIR, compose
from trainer.config.sentences import ConfigError
from trainer.model_folder import check_model
from trainer.plan import plan
from trainer.preflight import Findings, check_files
from trainer.resources import check_cluster, groups, required_bundles

MODEL_FILES = {
    "config.json": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 2048},
    "tokenizer.json": {},
    "tokenizer_config.json": {"chat_template": "x"},
}
TASK = {"id": "t0", "prompt": "In which country is Ulm?", "truth": "Germany"}


def write_tasks(file, count, name="t"):
    file.write_text("".join(json.dumps(TASK | {"id": f"{name}{number}"}) + "\n" for number in range(count)))


@pytest.fixture
def world(tmp_path):
    """A folder with a model, 16 training tasks, 3 held-out tasks and a corpus; overrides that name them."""
    (tmp_path / "model").mkdir()
    for name, content in MODEL_FILES.items():
        (tmp_path / "model" / name).write_text(json.dumps(content))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    write_tasks(tmp_path / "train.jsonl", 16)
    write_tasks(tmp_path / "heldout.jsonl", 3, "h")
    (tmp_path / "corpus.jsonl").write_text('{"id": "1", "title": "Ulm", "text": "Ulm is a city."}\n')
    return tmp_path


def overrides(world):
    return [
        "experiment=quickstart",
        f"model.path={world}/model",
        f"env.train_tasks={world}/train.jsonl",
        f"env.eval_tasks={world}/heldout.jsonl",
        f"env.retriever.corpus={world}/corpus.jsonl",
    ]


def faults(world, *more):
    with pytest.raises(ConfigError) as raised:
        check_files(compose([*overrides(world), *more]))
    return raised.value.sentences


def test_a_good_world(world):
    assert check_files(compose(overrides(world))) == Findings(train_tasks=16, eval_tasks=3)


def test_held_out_tasks_that_are_trained_are_noted(world):
    write_tasks(world / "heldout.jsonl", 3)
    (note,) = check_files(compose(overrides(world))).notes
    assert note.startswith("Note: 3 of 3 tasks in env.eval_tasks have the id of one in env.train_tasks, e.g. 't0': ")


def test_resampling_without_further_tasks_is_noted(world):
    fifteen, sixteen = (
        check_files(compose([*overrides(world), "advantage.dead_groups=resample", f"tasks_per_step={count}"])).notes
        for count in (15, 16)
    )
    assert fifteen == ()
    assert [note.partition(", since")[0] for note in sixteen] == [
        "Note: advantage.dead_groups=resample has nothing to draw with tasks_per_step=16"
    ]


@pytest.mark.parametrize(
    ("override", "start"),
    [
        ("model.path=/nowhere", "model.path=/nowhere does not exist"),
        ("env.train_tasks=/nowhere.jsonl", "env.train_tasks=/nowhere.jsonl is not a file"),
        ("env.eval_tasks=/nowhere.jsonl", "env.eval_tasks=/nowhere.jsonl is not a file"),
        ("env.retriever.corpus=/nowhere.jsonl", "env.retriever.corpus=/nowhere.jsonl is not a file"),
        ("tasks_per_step=17", "tasks_per_step=17 must be at most 16"),
        ("resume=/nowhere", "resume=/nowhere is not a folder"),
        ("runs_dir=/dev/null", "runs_dir=/dev/null is a file"),
    ],
)
def test_a_wrong_path_or_count(world, override, start):
    (sentence,) = faults(world, override)
    assert sentence.startswith(start)
    assert sentence.endswith(".")


def test_a_missing_corpus_names_the_command_that_makes_it(world):
    (world / "corpus.jsonl").unlink()
    assert "`python -m envs.prepare --out data/quickstart`" in faults(world)[0]


def test_a_custom_reward_that_does_not_exist(world):
    (sentence,) = faults(world, "env.reward.kind=custom", "env.reward.path=no_such_module.reward")
    assert "no_such_module.reward" in sentence


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            ["env=custom", "env.path=no_such.thing"],
            "env.path 'no_such.thing' cannot be imported: No module named 'no_such'",
        ),
        (["env=textworld", "env.games=/nowhere"], "env.games=/nowhere is not a folder; make one with"),
    ],
)
def test_other_worlds_are_looked_at_before_the_start(world, settings, sentence):
    files = [item for item in overrides(world) if item.startswith(("model", "env.train", "env.eval"))]
    with pytest.raises(ConfigError) as raised:
        check_files(compose([*settings, *files]))
    assert raised.value.sentences[0].startswith(sentence)
    assert len(raised.value.sentences) == 1


def test_missing_games_name_the_command_that_makes_them(world):
    with pytest.raises(ConfigError, match=r"python -m envs\.textworld_games --out data/textworld"):
        check_files(compose(["env=textworld", f"model.path={world}/model", "env.train_tasks=/nowhere.jsonl"]))


def test_a_missing_field_names_file_and_line(world):
    lines = (world / "train.jsonl").read_text().splitlines()
    lines[6] = json.dumps({"id": "t6", "prompt": "?"})
    (world / "train.jsonl").write_text("\n".join(lines))
    (sentence,) = faults(world)
    assert sentence.startswith("env.train_tasks cannot be used: ")
    assert f"{world}/train.jsonl line 7" in sentence
    assert "'truth'" in sentence


@pytest.mark.parametrize("name", ["train", "heldout"])
def test_an_empty_task_file(world, name):
    (world / f"{name}.jsonl").write_text("")
    (sentence,) = faults(world)
    assert f"{name}.jsonl has no tasks" in sentence


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("config.json", None, "no config.json"),
        ("config.json", "{", "config.json is not JSON"),
        ("config.json", '{"architectures": ["BertModel"]}', "its architectures are BertModel"),
        ("config.json", json.dumps(MODEL_FILES["config.json"] | {"max_position_embeddings": 128}), "at most 128"),
        ("model.safetensors", None, "no weights"),
        ("tokenizer.json", None, "no tokenizer"),
        ("tokenizer_config.json", "{}", "no chat template"),
    ],
)
def test_a_model_folder_that_cannot_be_trained(world, name, content, part):
    file = world / "model" / name
    file.unlink() if content is None else file.write_text(content)
    (sentence,) = faults(world)
    assert part in sentence


def test_a_hub_id_is_noted_and_a_mistyped_folder_is_not_taken_for_one(world, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HOME", str(world / "cache"))
    hub, typed = compose(["model=hf", "model.path=org/name"]), compose(["model=hf", "model.path=model/tiny"])
    assert check_model(hub)[0] == []
    assert check_model(hub)[1][0].startswith("model.path=org/name is taken for a hub id")
    assert check_model(typed)[0][0].startswith("model.path=model/tiny does not exist")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in check_model(hub)[0][0]


def test_bundles_of_a_run():
    config = compose(["learner.ranks=2", "rollout=gpu", "rollout.actors=3", "rollout.tensor_parallel=4"])
    assert required_bundles(config) == [{"CPU": 1.0}] * 2 + [{"GPU": 4.0}] * 3


def test_ranks_on_one_node_have_a_placement_group_of_their_own():
    together = compose(["learner.ranks=2", "rollout.actors=3", "cluster.strategy=SPREAD"])
    assert [(len(group.bundles), group.strategy) for group in groups(together)] == [(5, "SPREAD")]
    assert [len(group.bundles) for group in groups(together, learner=False)] == [3]
    apart = compose(["learner.ranks=2", "rollout.actors=3", "cluster.strategy=SPREAD", "cluster.learner=same_node"])
    assert [(len(group.bundles), group.strategy) for group in groups(apart)] == [(2, "STRICT_PACK"), (3, "SPREAD")]
    assert [len(group.bundles) for group in groups(apart, learner=False)] == [3]


@pytest.mark.parametrize(
    ("settings", "nodes", "sentence"),
    [
        ([], [{"CPU": 2}], None),
        (
            ["rollout.actors=1000"],
            [{"CPU": 4}, {"CPU": 4}],
            "The run needs 1001 CPUs (learner.ranks=1 and rollout.actors=1000) and the cluster has 8: "
            "lower rollout.actors to at most 7, or add nodes.",
        ),
        (
            ["learner.ranks=9"],
            [{"CPU": 8}],
            "The run needs 10 CPUs (learner.ranks=9 and rollout.actors=1) and the cluster has 8: "
            "lower learner.ranks, or add nodes.",
        ),
        (
            ["rollout=gpu"],
            [{"CPU": 8}],
            "The run needs 1 GPUs (rollout.actors=1 with rollout.tensor_parallel=1) and the cluster has none: "
            "add GPU nodes, or choose learner=cpu and rollout=cpu.",
        ),
        (
            ["rollout=gpu", "rollout.tensor_parallel=4"],
            [{"CPU": 8, "GPU": 2}, {"GPU": 2}],
            "The run's 4 GPUs (rollout.actors=1 with rollout.tensor_parallel=4) do not fit on 2 nodes with at most "
            "2 GPUs each, since an engine stays on one node: lower rollout.tensor_parallel or rollout.actors.",
        ),
        (["rollout=gpu", "learner=gpu", "rollout.tensor_parallel=3"], [{"GPU": 4}], None),
        (
            ["cluster.strategy=STRICT_PACK", "rollout.actors=3"],
            [{"CPU": 2}, {"CPU": 3}],
            "cluster.strategy=STRICT_PACK needs one node with 4 CPUs, and no node of the cluster has that many.",
        ),
        (
            ["cluster.learner=same_node", "learner.ranks=3"],
            [{"CPU": 2}, {"CPU": 2}],
            "cluster.learner=same_node needs one node with 3 CPUs, and no node of the cluster has that many.",
        ),
        (["cluster.learner=same_node", "learner.ranks=2", "rollout.actors=2"], [{"CPU": 2}, {"CPU": 2}], None),
        (
            ["cluster.strategy=STRICT_SPREAD", "rollout.actors=2"],
            [{"CPU": 8}, {"CPU": 8}, {}],
            "cluster.strategy=STRICT_SPREAD needs 3 nodes, one for each learner rank and rollout actor that it places, "
            "and the cluster has 2 that could take one.",
        ),
    ],
)
def test_what_a_cluster_must_have(settings, nodes, sentence):
    totals = {kind: sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU")}
    assert check_cluster(compose(settings), totals, nodes) == ([sentence] if sentence else [])


def test_the_plan_shows_numbers_that_can_be_checked():
    text = plan(compose(["experiment=quickstart", "name=r"]), Findings(train_tasks=900, eval_tasks=90), {"CPU": 8})
    assert "4 roots x (1 + 1 round x 2 nodes x 1 branch) = 12 leaves per task" in text
    assert "16 tasks = 192 leaves; at most 46,080 sampled tokens" in text  # 192 * (4 + 1) * 48
    assert "90 of 90 held-out ones" in text
    assert "2 of 8 CPUs" in text


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["rollout.actors=1000"]])
def test_dry_run_checks_a_real_cluster_and_exits(world, more):
    arguments = [*overrides(world), "cluster=local", "dry_run=true", "name=r", f"runs_dir={world}/runs", *more]
    done = subprocess.run(
        [sys.executable, "-m", "trainer.main", *arguments],
        cwd=world,
        env=os.environ | {"PYTHONPATH": str(CONFIG_DIR.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == (2 if more else 0)
    lines = done.stderr.splitlines()
    assert [line.startswith("The run needs 1001 CPUs") for line in lines] == ([True] if more else [])
    assert ("192 leaves" in done.stdout) == (not more)
    assert not (world / "runs").exists()
