"""What command lines compose to, and the sentence that each wrong one gives."""

import os
import subprocess
import sys
from datetime import datetime

import pytest
from omegaconf import OmegaConf

from trainer.compose import CONFIG_DIR, compose, compose_settings
from trainer.config import RunConfig
from trainer.config.keys import listed
from trainer.config.sentences import ConfigError
from trainer.main import main
from trainer.session import collection_spec, fleet_settings, tree_rules

TREE_KEYS = (
    "branches_per_node, dedup, dedup_attempts, max_tokens, max_tool_calls, nodes_per_round, picking, roots, rounds, "
    "sibling_penalty and ucb_constant"
)
TREES = "chain, default, entropy, quickstart, surprisal, ucb or uncertain"
INTEGER = "it must be an integer of at least 1."
MODELS = "hf, llama3.2-3b, qwen2.5-1.5b, qwen2.5-14b, qwen2.5-3b, qwen2.5-7b, shop, smollm2, textworld or tiny"
KINDS = "tree, inter, intra, tree_2norm, loo, sibling, edge, global_local or node_value"
OPTIONS = "edge, global_local, inter, intra, loo, node_value, sibling, tree or tree_2norm"
RANGE = "it must be a list of two finite numbers, the lower one first, or null"
EXPERIMENTS = sorted(file.stem for file in (CONFIG_DIR / "experiment").glob("*.yaml"))
DECIDES = ["env=decision", "env.train_tasks=t.jsonl", "env.eval_tasks=e.jsonl", "limits.max_turn_tokens=96"]
DECISIONS = [f"decision={file.stem}" for file in (CONFIG_DIR / "decision").glob("*.yaml") if file.stem != "none"]
NEEDED = {
    "model=hf": ["model.path=m"],
    "env=search_http": ["env.retriever.url=http://host:1/retrieve"],
    "env=custom": ["env.path=a.b", "env.train_tasks=t.jsonl", "env.eval_tasks=e.jsonl", "env.options.width=3"],
    "advantage=intra": ["tree.rounds=1"],
    "env=decision": ["env.train_tasks=t.jsonl", "env.eval_tasks=e.jsonl", "decision=travel"],
    **{option: [*DECIDES, option] for option in DECISIONS},
}
"""What some options need besides."""
BETAS = "it must be a list of 2 items, each a number of at least 0 and below 1."

REFUSED = {
    "tree.rootz=4": f"Unknown key tree.rootz (did you mean tree.roots?): tree accepts {TREE_KEYS}.",
    "+tree.rootz=4": f"Unknown key tree.rootz (did you mean tree.roots?): tree accepts {TREE_KEYS}.",
    "++tree.rootz=4": f"Unknown key tree.rootz (did you mean tree.roots?): tree accepts {TREE_KEYS}.",
    "~tree.rootz": f"Unknown key tree.rootz (did you mean tree.roots?): tree accepts {TREE_KEYS}.",
    "tree.xyz=4": f"Unknown key tree.xyz: tree accepts {TREE_KEYS}.",
    "tree.roots.x=4": f"Unknown key tree.roots.x (did you mean tree.roots?): tree accepts {TREE_KEYS}.",
    "roots=4": "Unknown key roots (did you mean tree.roots?).",
    "lr=1e-4": "Unknown key lr (did you mean learner.lr?).",
    "stepz=3": "Unknown key stepz (did you mean steps?).",
    "tree={rootz: 4}": f"tree={{'rootz': 4}} is not accepted: it must be {TREES}.",
    "tree.roots=0": f"tree.roots=0 is not accepted: {INTEGER}",
    "tree.roots=2.5": f"tree.roots=2.5 is not accepted: {INTEGER}",
    "tree.roots=true": f"tree.roots=true is not accepted: {INTEGER}",
    "tree.roots=null": f"tree.roots=null is not accepted: {INTEGER}",
    "tree.roots='8'": f"tree.roots='8' is not accepted: {INTEGER}",
    "tree.roots=": f"tree.roots is empty: {INTEGER}",
    "tree.roots=1,2": "tree.roots=1,2 gives several values: tree.roots takes one (a list is written [a,b]).",
    "tree.roots=[1": "Cannot read 'tree.roots=[1': an override is written key=value, e.g. tree.roots=4.",
    "tree.roots=${nope}": "tree.roots cannot be read: Interpolation key 'nope' not found.",
    "tree": "Cannot read 'tree': an override is written key=value, e.g. tree.roots=4.",
    "@tree=4": "Cannot read '@tree=4': an override is written key=value, e.g. tree.roots=4.",
    "tree=nope": f"tree=nope is not accepted: it must be {TREES}.",
    "model=nope": f"model=nope is not accepted: it must be {MODELS}.",
    "+model=nope": f"model=nope is not accepted: it must be {MODELS}.",
    "model=null": f"model=null is not accepted: it must be {MODELS}.",
    "model=": f"model= is not accepted: it must be {MODELS}.",
    "experiment=nope": f"experiment=nope is not accepted: it must be {listed(EXPERIMENTS, 'or')}.",
    "advantage=nope": f"advantage=nope is not accepted: it must be {OPTIONS}.",
    "advantage.kind=nope": f"advantage.kind='nope' is not accepted: it must be {KINDS}.",
    "model=hf": "model.path has no value: it must be a model folder or a hub id.",
    "model.path=": "model.path is empty: it must be a model folder or a hub id.",
    "model.path=7": "model.path=7 is not accepted: it must be a model folder or a hub id.",
    "model.dtype=float16": "model.dtype='float16' is not accepted: it must be float32 or bfloat16.",
    "env.name=nope": "env.name='nope' is not accepted: it must be search, textworld, custom or decision.",
    "env.train_tasks=": "env.train_tasks is empty: it must be the path of a file.",
    "env.retriever.corpus=": "env.retriever.corpus is empty: it must be the path of a file.",
    "env.retriever.kind=nope": "env.retriever.kind='nope' is not accepted: it must be local or http.",
    "env.retriever.url=http://a": "env.retriever.url is not accepted with env.retriever.kind='local'.",
    "env.retriever=4": (
        "env.retriever=4 is not accepted: it must be a section with the keys corpus, kind, retries, timeout_s and url."
    ),
    "env=search_http": "env.retriever.url has no value: it must be an address that begins with http.",
    "env.games=x": "env.games is not accepted with env.name='search'.",
    "env.options.width=3": "env.options is not accepted with env.name='search'.",
    "env.reward.kind=nope": "env.reward.kind='nope' is not accepted: it must be paper, authors or custom.",
    "env.reward.range=[1,0]": "env.reward.range=[1.0, 0.0] must be two numbers, the lower one first.",
    "env.reward.range=1": f"env.reward.range=1 is not accepted: {RANGE}.",
    "env.reward.range=[0,inf]": f"env.reward.range[1]=inf is not accepted: {RANGE}, and finite.",
    "dry_run=1": "dry_run=1 is not accepted: it must be true or false.",
    "dry_run='true'": "dry_run='true' is not accepted: it must be true or false.",
    "name=a/b": (
        "name='a/b' is not accepted: it must be null, or letters, digits, dots, dashes and underscores, at most 128."
    ),
    "runs_dir=": "runs_dir is empty: it must be text that is not empty.",
    "learner.lr=-1": "learner.lr=-1 is not accepted: it must be a number above 0.",
    "learner.lr=inf": "learner.lr=inf is not accepted: it must be a number above 0, and finite.",
    "learner.zero_stage=4": "learner.zero_stage=4 is not accepted: it must be an integer from 0 to 3.",
    "learner.warmup_share=1.5": "learner.warmup_share=1.5 is not accepted: it must be a number from 0 to 1.",
    "learner.betas=[0.9,1.5]": f"learner.betas[1]=1.5 is not accepted: {BETAS}",
    "learner.betas=0.9": f"learner.betas=0.9 is not accepted: {BETAS}",
    "loss.dual_clip=0.5": "loss.dual_clip=0.5 is not accepted: it must be a number above 1 or null.",
    "rollout.temperature=0": "rollout.temperature=0 is not accepted: it must be a number above 0.",
    "rollout.block_size=48": "rollout.block_size=48 must be a multiple of 32 when rollout.device=cpu.",
    "cluster.address=foo": "cluster.address='foo' is not accepted: it must be auto, local or ray://HOST:PORT.",
    "max_staleness=17": "max_staleness=17 is not accepted: it must be an integer from 0 to 16.",
    "rollout.top_p=0.95": "rollout.top_p=0.95 is not accepted: sampling must be from the full distribution "
    "(rollout.top_p=1), since the learner's log-probabilities know nothing of the cut; use rollout.temperature.",
    "rollout.keep_turns=perhaps": "rollout.keep_turns='perhaps' is not accepted: it must be true or false.",
    "limits.long_prompts=cut": "limits.long_prompts='cut' is not accepted: it must be error or skip.",
    "loss.aggregation=dr_grpo": "loss.aggregation=dr_grpo needs loss.dr_grpo_length, an integer of at least 1.",
    "limits.max_context_tokens=300": (
        "limits.max_context_tokens=300 must be at least 320 (limits.max_prompt_tokens + limits.max_turn_tokens)."
    ),
    "learner.max_tokens_per_pack=512": (
        "learner.max_tokens_per_pack=512 must be at least limits.max_context_tokens=1024, "
        "so that every path fits into a pack."
    ),
    "learner.mini_batches=17": "learner.mini_batches=17 must be at most tasks_per_step=16.",
    "push.backend=nccl": (
        "push.backend=nccl needs learner.device=cuda and rollout.device=cuda: use push.backend=gloo or auto."
    ),
}


def sentences(*overrides):
    with pytest.raises(ConfigError) as raised:
        compose(overrides)
    return raised.value.sentences


@pytest.mark.parametrize(("override", "sentence"), REFUSED.items())
def test_a_wrong_override_gives_one_sentence(override, sentence):
    assert sentences(override) == [sentence]


def test_several_faults_give_a_sentence_each():
    found = sentences("tree.roots=0", "tree.rootz=1", "model=nope", "steps='3'")
    assert [sentence.split()[0] for sentence in found] == ["Unknown", "model=nope", "steps='3'", "tree.roots=0"]


def test_limits_of_waits_reach_the_fleet():
    fleet = fleet_settings(compose(["scheduler.answer_timeout_s=7", "rollout.stop_timeout_s=3"]))
    assert (fleet.answer_timeout_s, fleet.stop_timeout_s) == (7, 3)


def test_a_mistyped_key_is_not_blamed_on_the_keys_it_should_have_helped():
    found = sentences("limits.max_context_tokens=4096", "learner.max_tokens_per_pck=4096")
    assert len(found) == 1
    assert found[0].startswith("Unknown key learner.max_tokens_per_pck (did you mean learner.max_tokens_per_pack?)")


def test_a_fault_that_the_environment_reports_names_its_section():
    (sentence,) = sentences("env.reward.kind=custom")
    assert sentence.startswith("env.reward")
    assert "path" in sentence


def test_every_single_chain_is_refused_for_lack_of_advantages():
    assert sentences("tree.roots=1", "tree.rounds=0")[0].startswith("tree.roots=1 without branches")
    assert sentences("tree=chain", "advantage=intra")[0].startswith("advantage.kind=intra needs at least two leaves")


@pytest.mark.parametrize("key", ["env.retriever", "env.reward.score", "env.options.x"])
def test_keys_of_another_world_are_refused(key):
    value = {"env.retriever": "{kind: local}", "env.reward.score": "em", "env.options.x": "1"}[key]
    (sentence,) = sentences("env=textworld", f"{key}={value}")
    assert sentence == f"{key.removesuffix('.x')} is not accepted with env.name='textworld'."


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes(name):
    needed = [] if name in {"quickstart", "shop", "smollm2", "textworld"} else NEEDED["env=search_http"]
    config = compose([f"experiment={name}", *needed], now=datetime(2026, 3, 1, 10, 15))
    assert config.name == f"{name}-20260301-101500"


@pytest.mark.parametrize(
    "option",
    [f"{file.parent.name}={file.stem}" for file in CONFIG_DIR.glob("*/*.yaml") if file.parent.name != "experiment"],
)
def test_every_option_of_every_group_composes(option):
    assert isinstance(compose([option, *NEEDED.get(option, [])]), RunConfig)


WRONG_DECISIONS = {
    "decision.polcy=flat": "Unknown key decision.polcy (did you mean decision.policy?): decision accepts",
    "decision.nodes.0.max_tokns=5": (
        "Unknown key decision.nodes.0.max_tokns (did you mean decision.nodes[].max_tokens?): decision.nodes accepts"
    ),
    "decision.nodes.1.parent=[intent,destination]": (
        "decision.nodes[1].parent=['intent', 'destination'] is not accepted: it must be the name of one earlier node, "
        "or null."
    ),
    "decision.nodes.1.parent=null": "decision.nodes: node 'destination' is a second root beside 'intent'; give it",
    "decision.nodes.1.adapter.rank=0": "decision.nodes[1].adapter.rank=0 is not accepted: it must be an integer from 1",
    "decision.nodes.1.output_schema.type=list": (
        "decision.nodes: node 'destination': output_schema is not valid JSON Schema (Draft 2020-12): at type: 'list'"
    ),
    "decision.nodes=3": "decision.nodes=3 is not accepted: it must be a list of sections with the keys act, adapter,",
    "decision.nodes.1.adapter=3": (
        "decision.nodes[1].adapter=3 is not accepted: it must be a section with the keys alpha, freeze, head and rank, "
        "or null."
    ),
    "decision.contracts=lax": "decision.contracts='lax' is not accepted: it must be strict or penalty.",
    "decision.world=": "decision.world is empty: it must be shop, travel, orders, or a dotted path such as",
    "decision.nodes.0.max_tokens=97": (
        "decision.nodes: node 'intent': max_tokens=97 must be at most limits.max_turn_tokens=96."
    ),
    "learner.lora.rank=8": "learner.lora.rank=8 must be 0 with decision.policy=typed, whose nodes have adapters",
    "env.name=custom": "env.path has no value",
    "decision=none": "env.name=decision needs a decision section: choose one with decision=..., e.g. decision=shop.",
}


@pytest.mark.parametrize(("override", "beginning"), WRONG_DECISIONS.items())
def test_a_wrong_decision_gives_one_sentence_that_names_the_key_or_the_node(override, beginning):
    (sentence,) = sentences(*DECIDES, "decision=travel", override)
    assert sentence.startswith(beginning)


def test_kept_turns_are_noted_to_be_of_no_use_to_typed_nodes():
    (note,) = compose([*DECIDES, "decision=travel", "rollout.keep_turns=true", "name=r"]).notes
    assert note.startswith("Note: rollout.keep_turns has no effect on typed decision nodes")
    flat = compose([*DECIDES, "decision=travel", "decision.policy=flat", "rollout.keep_turns=true", "name=r"])
    assert flat.notes == ()


def test_a_decision_needs_its_own_environment():
    (sentence,) = sentences("decision=travel")
    assert sentence == "decision goes with env.name=decision, not search: set env=decision, or decision=none."


def test_a_flat_policy_needs_a_turn_for_every_node_and_changes_one_key_only():
    typed = compose([*DECIDES, "decision=travel", "name=r"])
    flat = compose([*DECIDES, "decision=travel", "name=r", "decision.policy=flat"])
    assert typed.typed is typed.decision
    assert flat.typed is None
    one_key = flat.decision.model_copy(update={"policy": "typed"})
    assert flat.model_copy(update={"decision": one_key}) == typed
    (sentence,) = sentences(*DECIDES, "decision=travel", "decision.policy=flat", "limits.max_turns=3")
    assert sentence == (
        "limits.max_turns=3 must be at least 4 with decision.policy=flat: a trajectory has a turn for each node."
    )


@pytest.mark.parametrize("rule", ["entropy", "surprisal", "uncertain", "ucb"])
def test_options_of_picking_rules_have_as_many_leaves_as_the_default(rule):
    config = compose([f"tree={rule}", "name=r"])
    tree = config.tree
    assert tree.picking == rule
    assert (tree.roots, tree.rounds, tree.nodes_per_round, tree.leaves_per_task) == (2, 2, 1, 6)
    assert config.notes == ()
    rules, plain = tree_rules(config), compose(["name=r"])
    assert (rules.picking, rules.sibling_penalty, rules.leaves_per_tree) == (rule, 0.05, 3)
    spec = collection_spec(config, "train-1", [], rules, 1.0)
    assert spec.sampling.entropy_topk == (20 if rule == "entropy" else 0)
    assert config.model_copy(update={"tree": plain.tree}) == plain, "nothing but the tree section changes"


def test_every_key_of_the_tree_section_reaches_the_scheduler():
    values = {"max_tokens": 900, "max_tool_calls": 7, "dedup": "resample", "dedup_attempts": 3, "ucb_constant": 2.0}
    rules = tree_rules(compose(["name=r", *(f"tree.{key}={value}" for key, value in values.items())]))
    assert {key: getattr(rules, key) for key in values} == values


def test_overrides_come_last_and_prefixes_make_no_difference():
    for prefix in ("", "+", "++"):
        config = compose(["experiment=quickstart", f"{prefix}tree.roots=3", "learner.lr=1", "learner.betas=[0.5,0.9]"])
        assert (config.tree.roots, config.learner.lr, config.learner.betas) == (3, 1.0, (0.5, 0.9))
        assert config.tree.leaves_per_task == 9


def test_files_without_an_experiment_hold_the_defaults_of_the_sections():
    config = compose(["name=r"])
    plain = RunConfig(name="r", model=config.model, env=config.env)
    assert config == plain


def test_a_configuration_dumped_as_json_reads_back_unchanged():
    config = compose(["experiment=quickstart", "name=r"])
    assert RunConfig.model_validate_json(config.model_dump_json(), strict=True) == config


def test_a_folder_of_ones_own(tmp_path):
    assert compose_settings_fault(tmp_path).startswith(f"No configuration in {tmp_path}")
    (tmp_path / "config.yaml").write_text("name: mine\ntre: {roots: 4}\n")
    with pytest.raises(ConfigError) as raised:
        compose([], config_dir=tmp_path)
    assert [sentence.split(":")[0] for sentence in raised.value.sentences] == [
        "model has no value",
        "env has no value",
        "Unknown key tre (did you mean tree?).",
    ]


def compose_settings_fault(folder):
    with pytest.raises(ConfigError) as raised:
        compose_settings([], config_dir=folder)
    return raised.value.sentences[0]


def test_cfg_job_prints_what_was_composed(capsys):
    assert main(["experiment=quickstart", "tree.roots=5", "--cfg", "job"]) == 0
    printed = OmegaConf.create(capsys.readouterr().out)
    assert (printed.tree.roots, printed.learner.lr, "hydra" in printed) == (5, 5e-4, False)


def test_help_names_groups_and_an_example(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"  experiment={'|'.join(EXPERIMENTS)}" in shown
    assert "python -m trainer.main experiment=quickstart" in shown


@pytest.mark.parametrize(
    ("arguments", "stderr"),
    [
        (["+tree.rootz=4"], f"{REFUSED['+tree.rootz=4']}\n"),
        (["tree.roots=0", "model=nope"], f"{REFUSED['model=nope']}\n{REFUSED['tree.roots=0']}\n"),
        (["--nope"], "Unrecognized arguments: --nope; see --help.\n"),
    ],
)
def test_the_command_refuses_from_any_folder_and_leaves_nothing_behind(tmp_path, arguments, stderr):
    done = subprocess.run(
        [sys.executable, "-m", "trainer.main", *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(CONFIG_DIR.parent)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", stderr)
    assert list(tmp_path.iterdir()) == []
