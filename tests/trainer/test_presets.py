"""The presets for the Tree-GRPO paper's runs compose offline, and their derived numbers are the recipe's.

They have not run: no machine with GPUs is needed or asked here, nor the model hub.
"""

import pytest

from trainer.compose import CONFIG_DIR, compose
from trainer.config import RunConfig
from trainer.resources import required_bundles
from trainer.schedule import learning_rate

MODELS = {
    "qwen2.5-1.5b": ("Qwen/Qwen2.5-1.5B-Instruct", 8),
    "qwen2.5-3b": ("Qwen/Qwen2.5-3B-Instruct", 8),
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B-Instruct", 8),
    "qwen2.5-14b": ("Qwen/Qwen2.5-14B-Instruct", 16),
    "llama3.2-3b": ("meta-llama/Llama-3.2-3B-Instruct", 8),
}
"""Hub id, and GPUs of learner and engines together."""
TASKS = {"multihop": (3, 500, 500, "em"), "singlehop": (3, 500, 500, "em"), "web": (5, 2000, 1000, "f1")}
"""Tool calls, tokens per turn, tokens per observation, score."""
PRESETS = [(task, model) for task in TASKS for model in MODELS]

every_preset = pytest.mark.parametrize(("task", "model"), PRESETS)


def preset(task: str, model: str, *more: str) -> RunConfig:
    return compose([f"experiment={task}-{model}", "env.retriever.url=http://host:8000/retrieve", *more])


def test_every_file_is_in_the_table_and_says_that_it_has_not_run():
    files = [file for file in (CONFIG_DIR / "experiment").glob("*.yaml") if "paper/" in file.read_text()]
    assert {file.stem for file in files} == {f"{task}-{model}" for task, model in PRESETS}
    for file in files:
        assert "Not yet run on GPUs" in file.read_text()
        assert len(file.read_text().splitlines()) < 10


@every_preset
def test_the_recipe(task, model):
    config = preset(task, model)
    learner, loss = config.learner, config.loss
    assert (learner.lr, learner.betas, learner.grad_clip) == (1e-6, (0.9, 0.999), 1.0)
    assert (loss.kl_coef, loss.clip_low, loss.clip_high, loss.aggregation) == (0.001, 0.2, 0.2, "seq_mean")
    assert (loss.dual_clip, loss.entropy_coef, loss.ratio_level, learner.schedule) == (3.0, 0.0, "token", "constant")
    assert (config.rollout.temperature, config.rollout.top_p, config.advantage.kind) == (1.0, 1.0, "tree")
    assert (config.env.reward.kind, config.env.reward.format_penalty) == ("paper", 0.2)
    assert (config.steps, config.tasks_per_step, config.tasks_per_step // learner.mini_batches) == (180, 512, 64)
    assert (config.env.topk, config.env.retriever.kind) == (3, "http")
    limits = config.limits
    lengths = (limits.max_turns, limits.max_turn_tokens, limits.max_observation_tokens, config.env.reward.score)
    assert lengths == TASKS[task]


@every_preset
def test_numbers_derived_from_the_recipe(task, model):
    config = preset(task, model)
    tree, limits = config.tree, config.limits
    assert (tree.roots, tree.nodes_per_round, tree.rounds, tree.leaves_per_task) == (2, 2, 1, 6)
    assert config.leaves_per_step == 512 * 6
    assert config.optimizer_steps == 180 * 8
    rates = [learning_rate(step, config.optimizer_steps, config.learner) for step in (0, 409, 410, 1439)]
    assert rates == pytest.approx([1e-6 / 410, 1e-6, 1e-6, 1e-6])  # 0.285 of 1440 steps are 410.4
    unbounded = limits.max_prompt_tokens + (limits.max_turns + 1) * limits.max_turn_tokens
    unbounded += limits.max_turns * limits.max_observation_tokens
    assert unbounded <= limits.max_context_tokens <= config.learner.max_tokens_per_pack


@every_preset
def test_model_and_machines(task, model):
    config = preset(task, model)
    hub_id, gpus = MODELS[model]
    assert (config.model.path, config.model.dtype, config.push_backend) == (hub_id, "bfloat16", "nccl")
    assert sum(bundle["GPU"] for bundle in required_bundles(config)) == gpus
    assert config.learner.gradient_checkpointing


@pytest.mark.parametrize("task", TASKS)
def test_a_chain_is_the_same_run_with_another_tree(task):
    tree, chain = preset(task, "qwen2.5-3b", "name=r"), preset(task, "qwen2.5-3b", "name=r", "tree=chain")
    assert (chain.tree.roots, chain.tree.rounds, chain.tree.leaves_per_task) == (6, 0, 6)
    assert chain.model_copy(update={"tree": tree.tree}) == tree
    assert preset(task, "qwen2.5-3b", "tree=chain", "tree.roots=4").tree.leaves_per_task == 4


def test_the_instruction_names_the_number_of_searches():
    assert "search up to 3 times" in preset("multihop", "qwen2.5-3b").env.instruction
    assert "search up to 7 times" in preset("web", "qwen2.5-3b", "limits.max_turns=7").env.instruction


def test_the_steps_that_the_instruction_shows_are_well_formed():
    from envs.actions import parse_action

    lines = preset("multihop", "qwen2.5-3b").env.instruction.splitlines()
    shown = [parse_action(line) for line in lines if line.startswith("<think>")]
    assert [(action.kind, action.well_formed) for action in shown] == [("search", True), ("answer", True)]
