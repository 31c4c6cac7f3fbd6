"""The typed sections: derived numbers, the checks between keys, and what the page of keys says."""

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from trainer.config import ModelConfig, RunConfig, TreeConfig
from trainer.config.keys import all_keys, describe, listed
from trainer.config_docs import PAGE, page

LEAST = {
    "name": "r",
    "model": {"path": "m"},
    "env": {
        "name": "search",
        "train_tasks": "a.jsonl",
        "eval_tasks": "b.jsonl",
        "retriever": {"kind": "local", "corpus": "c.jsonl"},
    },
}


def make(**sections):
    return RunConfig.model_validate_json(json.dumps(LEAST | sections), strict=True)


@pytest.mark.parametrize(
    ("roots", "nodes", "branches", "rounds", "leaves"),
    [(2, 2, 1, 1, 6), (4, 2, 1, 1, 12), (4, 3, 1, 2, 28), (6, 0, 1, 0, 6), (1, 2, 3, 2, 13)],
)
def test_leaves_per_task_is_roots_times_one_plus_rounds_nodes_branches(roots, nodes, branches, rounds, leaves):
    tree = TreeConfig(roots=roots, nodes_per_round=nodes, branches_per_node=branches, rounds=rounds)
    assert tree.leaves_per_task == leaves


def test_numbers_of_a_run():
    config = make(steps=30, tasks_per_step=16, learner={"mini_batches": 2, "epochs": 3})
    assert config.leaves_per_step == 16 * 6
    assert config.optimizer_steps == 30 * 2 * 3
    assert config.limits.max_path_tokens == 1024  # 256 + 4 * (64 + 256) + 64 = 1600, cut to the context


def test_push_backend_follows_the_devices():
    assert make().push_backend == "gloo"
    assert make(learner={"device": "cuda"}).push_backend == "gloo"
    assert make(learner={"device": "cuda"}, rollout={"device": "cuda"}).push_backend == "nccl"


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        ModelConfig(path="m").path = "n"


def test_every_fault_between_keys_is_a_line():
    with pytest.raises(ValidationError) as raised:
        make(learner={"mini_batches": 99}, limits={"max_context_tokens": 100}, push={"backend": "nccl"})
    lines = str(raised.value.errors()[0]["ctx"]["error"]).splitlines()
    assert [line.split()[0] for line in lines] == [
        "learner.mini_batches=99",
        "limits.max_context_tokens=100",
        "push.backend=nccl",
    ]


def test_keys_of_a_section_that_comes_in_kinds():
    keys = all_keys()
    assert keys.values["env.retriever.kind"].accepted == "local or http"
    assert keys.sections["env.retriever"] == ("kind", "corpus", "url", "timeout_s", "retries")
    assert keys.tags == {"env": "name", "env.retriever": "kind"}
    assert keys.values["env.name"].accepted == "search, textworld, custom or decision"
    nodes = "decision.nodes"
    assert keys.free == {"env.options", "decision.options", f"{nodes}.input_schema", f"{nodes}.output_schema"}


def test_keys_of_sections_that_may_be_null_and_of_lists_of_sections():
    keys = all_keys()
    assert {name: whole.accepted for name, whole in keys.wholes.items()} == {
        "decision": "a section or null",
        "decision.nodes": "a list of sections",
        "decision.nodes.adapter": "a section or null",
    }
    assert keys.sections["decision.nodes.adapter"] == ("rank", "alpha", "head", "freeze")
    assert keys.written("decision.nodes.adapter.rank") == "decision.nodes[].adapter.rank"
    names = [key.name for key in keys.rows()]
    assert names.index("decision.nodes") + 1 == names.index("decision.nodes.name")
    assert keys.is_known("decision.nodes.0.adapter.rank")
    assert keys.is_known("decision.nodes[0].adapter.rank")
    assert not keys.is_known("decision.nodes.0.rank")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1}, "an integer of at least 1"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "a number from 0 to 1"),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "a number of at least 0 and below 1"),
        ({"anyOf": [{"type": "number", "exclusiveMinimum": 1}, {"type": "null"}]}, "a number above 1 or null"),
        ({"enum": [0, 2, 4]}, "0, 2 or 4"),
        ({"type": "array", "items": {"type": "string"}}, "a list of items, each text"),
        ({"type": "boolean"}, "true or false"),
    ],
)
def test_accepted_values_in_words(schema, words):
    assert describe(schema) == words


def test_listed():
    assert [listed(names, "or") for names in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a or b", "a, b or c"]


def test_own_sections_say_what_every_key_means():
    silent = [key.name for key in all_keys().values.values() if not key.meaning and not key.name.startswith("env.")]
    assert silent == []


def test_the_page_of_keys_is_current():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m trainer.config_docs"


@pytest.mark.parametrize("module", ["trainer.config", "trainer.compose", "trainer.preflight", "trainer.main"])
def test_imports_are_light(module):
    heavy = {"torch", "ray", "vllm", "deepspeed", "transformers", "wandb", "pyarrow", "tantivy"}
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_kinds_that_compare_inside_a_tree_need_two_leaves_in_it():
    for kind in ("intra", "tree_2norm"):
        with pytest.raises(ValidationError, match=f"advantage.kind={kind} needs at least two leaves per tree"):
            make(tree={"roots": 4, "rounds": 0}, advantage={"kind": kind})
    for kind in ("tree", "inter", "loo", "sibling", "edge", "global_local", "node_value"):
        make(tree={"roots": 4, "rounds": 0}, advantage={"kind": kind})


def test_a_context_too_short_for_all_steps_is_noted():
    limits = {"max_prompt_tokens": 100, "max_turns": 3, "max_turn_tokens": 50, "max_context_tokens": 299}
    (note,) = make(limits=limits).notes
    assert note.startswith("Note: limits.max_context_tokens=299 is less than the 300 tokens of a prompt of")
    assert make(limits=limits | {"max_context_tokens": 300}).notes == ()


def test_a_raw_singleton_is_for_kinds_of_leaves():
    assert make(advantage={"kind": "loo", "singleton": "raw"}).advantage.singleton == "raw"
    with pytest.raises(ValidationError, match=r"advantage.singleton=raw is not accepted with advantage.kind=edge"):
        make(advantage={"kind": "edge", "singleton": "raw"})


def test_notes_name_what_may_surprise():
    assert make().notes == ()
    (doubled,) = make(tree={"roots": 1}).notes
    assert "every advantage doubles" in doubled
    (few,) = make(advantage={"kind": "intra"}).notes
    assert "compares only the 3 leaves of a tree" in few
    assert make(advantage={"kind": "intra"}, tree={"nodes_per_round": 5}).notes == ()
    (uncorrected,) = make(max_staleness=1, loss={"old_logprobs": "recompute"}).notes
    assert "nothing corrects for tokens of older weights" in uncorrected
    assert make(max_staleness=1, loss={"old_logprobs": "recompute", "tis_cap": 2.0}).notes == ()
    assert make(max_staleness=1).notes == ()
    (blind,) = make(guards={"max_kl": 0.1}, loss={"old_logprobs": "recompute"}).notes
    assert "guards.max_kl and guards.max_ratio see nothing" in blind
    assert make(guards={"max_kl": 0.1}).notes == ()
    assert make(guards={"max_ratio": 9.0}, loss={"old_logprobs": "recompute"}, learner={"epochs": 2}).notes == ()


@pytest.mark.parametrize(
    ("tree", "note"),
    [
        ({"picking": "ucb"}, "Note: tree.picking=ucb compares outcomes"),
        ({"picking": "uncertain", "nodes_per_round": 1, "rounds": 2}, ""),
        ({"picking": "entropy"}, ""),
        ({"max_tokens": 2048}, "Note: tree.max_tokens=2048 gives each of the 2 trees of a task 1024, and one path may"),
        ({"max_tokens": 2050}, ""),
        ({"max_tool_calls": 9}, "Note: tree.max_tool_calls=9 gives each of the 2 trees of a task 4, and one path may"),
        ({"max_tool_calls": 10}, ""),
        ({"max_tokens": 9000, "rounds": 0, "roots": 4}, "Note: tree.max_tokens has no effect on chains"),
    ],
)
def test_notes_on_rules_and_budgets(tree, note):
    found = make(tree=tree).notes
    assert len(found) == bool(note)
    assert all(sentence.startswith(note) for sentence in found)
