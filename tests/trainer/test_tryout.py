import asyncio

import pytest
import torch

from envs.corpus import Passage
from envs.retriever import LocalRetriever
from envs.rewards import PaperReward
from envs.scoring import exact_match
from envs.search_env import SearchEnv
from envs.types import EndReason, Message, Task
from trainer import smollm2
from trainer.demonstrations import prompt_ids
from trainer.tiny_model import tiny_tokenizer
from trainer.tryout import Limits, main, play, report

ULM = Task(
    id="ulm",
    prompt=(Message(role="user", content="In which country is the city Ulm ?"),),
    truth=("Germany",),
    meta={"hops": 1},
)
SEARCH = "<think> look up the city </think><search> Ulm </search>"
ANSWER = "<think> i know </think><answer> Germany </answer>"


@pytest.fixture
def env():
    passages = [Passage(id="1", title="Ulm", text="Ulm is a city in Germany.")]
    return SearchEnv(LocalRetriever(passages), score=exact_match, reward=PaperReward())


class Script:
    """A model that writes the given texts, one per turn, to every row, then padding."""

    def __init__(self, tokenizer, texts):
        self.turns = iter([tokenizer.encode(text) for text in texts])
        self.seen = []

    def generate(self, input_ids, attention_mask, pad_token_id, **_):
        self.seen.append(input_ids[0][attention_mask[0] == 1].tolist())
        made = torch.tensor([[*next(self.turns), pad_token_id, pad_token_id]] * len(input_ids))
        return torch.cat([input_ids, made], dim=1)


def test_a_right_game_is_played_with_exact_ids(env):
    tokenizer = tiny_tokenizer([SEARCH, ANSWER] * 3)
    model = Script(tokenizer, [SEARCH, ANSWER])
    games = asyncio.run(play(model, tokenizer, env, [ULM, ULM], Limits(max_turns=2)))
    found = "<information> Ulm: Ulm is a city in Germany. </information>"
    assert games[0].texts == [SEARCH, found, ANSWER]
    assert model.seen[1] == prompt_ids(tokenizer, ULM.prompt) + tokenizer.encode(SEARCH) + tokenizer.encode(found)
    assert report(games) == [
        "hops 1: success 1.000 of 2",
        "total: success 1.000 of 2",
        f"means: score 1.000, reward 1.000, 2.0 turns, {len(games[0].ids)} tokens",
        "ended: answered 2",
    ]
    assert games[0].ids == model.seen[1] + tokenizer.encode(ANSWER)


def test_a_search_in_the_last_turn_ends_the_game(env):
    tokenizer = tiny_tokenizer([SEARCH] * 3)
    games = asyncio.run(play(Script(tokenizer, [SEARCH] * 3), tokenizer, env, [ULM], Limits(max_turns=2)))
    assert games[0].result.end is EndReason.TURN_LIMIT
    assert games[0].texts[3].endswith("<last/>")


def test_missing_files_are_one_sentence(tmp_path, capsys):
    assert main(["--model", "x", "--tasks", str(tmp_path / "no.jsonl"), "--corpus", "c.jsonl"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'no.jsonl'} cannot be read")


def test_smollm2_folder_is_made_once(tmp_path, capsys):
    for name in smollm2.FILES:
        (tmp_path / name).write_text("{}")
    assert smollm2.main(["--out", str(tmp_path)]) == 0
    assert "already there" in capsys.readouterr().out
