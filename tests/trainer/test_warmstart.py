import json
import random

import pytest
import torch

from envs.types import Message, Task
from rollout_workers.actor import TokenizerCodec
from trainer.demonstrations import Demonstration, Example, Segment, batches, encode, read_demonstrations
from trainer.practice import NameMaker, lookup, renamed
from trainer.teacher_forced import imitation, parts
from trainer.tiny_model import GAME_TAGS, NODE_TAGS, TAGS, as_loaded, tags_in, tiny_model, tiny_tokenizer
from trainer.warmstart import Recipe, Source, learning_rate, load, loss_of, main, save, train

QUESTION = "In which country is the city Ulm ?"
STEP = "<think> look up the city </think><search> Ulm </search>"
FOUND = "<information> Ulm: Ulm is a city in Germany. </information>"
FINAL = "<think> i know </think><answer> Germany </answer>"


def demonstration(question=QUESTION):
    return Demonstration(
        task_id="city_country/ulm",
        messages=(Message(role="user", content=question),),
        segments=(
            Segment(text=STEP, train=True),
            Segment(text=FOUND, train=False),
            Segment(text=FINAL, train=True),
        ),
    )


def line(**changes):
    record = {
        "task_id": "t",
        "messages": [{"role": "user", "content": QUESTION}],
        "segments": [{"text": STEP, "train": True}, {"text": FOUND, "train": False}, {"text": FINAL, "train": True}],
    }
    return json.dumps({name: value for name, value in (record | changes).items() if value is not None})


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer([QUESTION, STEP, FOUND, FINAL, "Saint-Étienne 120451 Europe/Berlin"] * 3)


class LetterTokenizer:
    """One token per letter, its code point; a prompt is the letters of its last message."""

    def apply_chat_template(self, chat, **_):
        return {"input_ids": [ord(letter) for letter in chat[-1]["content"]]}

    def encode(self, text, add_special_tokens):
        return [ord(letter) for letter in text]


def test_mask_follows_the_recorded_lengths():
    item = Demonstration(
        task_id="five",
        messages=(Message(role="user", content="ab"),),
        segments=(Segment(text="a", train=True), Segment(text="b", train=False), Segment(text="a", train=True)),
    )
    example = encode(item, LetterTokenizer())
    assert example.ids == (97, 98, 97, 98, 97)
    assert example.trained == (False, False, True, False, True)


@pytest.mark.parametrize(
    "text",
    [QUESTION, STEP + FOUND, "Ōsaka 12 \n\n  日本 🙂", "a  b\tc\r\n", " <last/> x", "", "e\u0301 \u0000 ﷽"],
)
def test_tokenizer_round_trip(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_tags_are_one_token_each_and_names_are_cut_alike(tokenizer):
    for tag in TAGS:
        assert len(tokenizer.encode(tag)) == 1
    name = tokenizer.encode(" Saint-Étienne")
    for text in (" city Saint-Étienne ?", "<search> Saint-Étienne </search>", ": Saint-Étienne, Saint-Étienne."):
        ids = tokenizer.encode(text)
        assert any(ids[at : at + len(name)] == name for at in range(len(ids)))
    assert len(tokenizer.encode("120451")) == 6


def test_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tiny_model(tokenizer, hidden=32, layers=1).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert encode(demonstration(), again) == encode(demonstration(), tokenizer)
    assert again.eos_token == "<|end|>"
    assert again.pad_token == "<|pad|>"


def test_ids_equal_those_of_a_rollout(tokenizer):
    """Prompt through the codec of rollouts, then each sampled step and observation by itself."""
    item = demonstration()
    codec = TokenizerCodec(tokenizer)
    ids = codec.prompt(Task(id="t", prompt=item.messages, truth=("Germany",)))
    assert tokenizer.decode(ids) == f"<|user|> {QUESTION}<|end|><|assistant|>"
    for segment in item.segments:
        ids = ids + codec.encode(segment.text)
    assert encode(item, tokenizer).ids == tuple(ids)


def test_batches_hold_every_example_once_within_the_budget():
    examples = [Example(ids=(7,) * length, trained=(True,) * length) for length in (3, 9, 4, 8)]
    got = list(batches(examples, 18, random.Random(0)))
    assert sorted(sorted(len(item.ids) for item in batch) for batch in got) == [[3, 4], [8, 9]]


def test_renaming_is_consistent_and_keeps_everything_else():
    names, rng = NameMaker(["Ulm", "Verona"]), random.Random(3)
    changed = renamed(demonstration(), names, rng)
    city = changed.segments[0].text.removeprefix("<think> look up the city </think><search> ")
    city = city.removesuffix(" </search>")
    country = changed.segments[2].text.removeprefix("<think> i know </think><answer> ").removesuffix(" </answer>")
    assert changed.messages[0].content == f"In which country is the city {city} ?"
    assert changed.segments[1].text == f"<information> {city}: {city} is a city in {country}. </information>"
    assert [segment.train for segment in changed.segments] == [True, False, True]
    assert names.like("120451", rng).isdigit()


def test_lookups_are_in_the_prompt():
    made = lookup(NameMaker(["Ulm", "Verona", "Bergen"]), random.Random(0))
    for given, asked in zip(made.segments[::2], made.segments[1::2], strict=True):
        key = given.text.removeprefix("<search> ").removesuffix(" </search>")
        value = asked.text.removeprefix("<answer> ").removesuffix(" </answer>")
        assert f"{key} is {value}" in made.messages[0].content
        assert (given.train, asked.train) == (False, True)


def test_learning_rate_rises_and_falls():
    assert learning_rate(0.0, 1.0) == pytest.approx(0.02)
    assert learning_rate(0.04, 1.0) == pytest.approx(1.0)
    assert learning_rate(0.52, 1.0) == pytest.approx(0.51)
    assert learning_rate(1.0, 1.0) == pytest.approx(0.02)


def test_loss_counts_trained_tokens_only(tokenizer):
    torch.manual_seed(0)
    model = tiny_model(tokenizer, hidden=32, layers=1)
    example = encode(demonstration(), tokenizer)
    cut = example.trained.index(True) + 3
    short = Example(ids=example.ids[:cut], trained=example.trained[:cut])
    together, count = loss_of(model, [example, short], pad=0)
    assert count == sum(example.trained) + 3
    alone = [loss_of(model, [item], pad=0) for item in (example, short)]
    assert together.item() == pytest.approx(sum(loss.item() * n for loss, n in alone) / count, rel=1e-5)
    logits = model(input_ids=torch.tensor([example.ids])).logits[0, :-1].log_softmax(-1)
    wanted = [-logits[at - 1, example.ids[at]].item() for at, on in enumerate(example.trained) if on]
    assert alone[0][0].item() == pytest.approx(sum(wanted) / len(wanted), rel=1e-5)


@pytest.mark.parametrize("muon_lr", [0.0, 0.02])
def test_twenty_steps_overfit_a_micro_model_the_same_way_twice(tokenizer, muon_lr):
    items = [demonstration()]
    recipe = Recipe(steps=20, minutes=None, lr=2e-2, muon_lr=muon_lr, batch_tokens=128, practice=0.0, seed=0)
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        model = tiny_model(tokenizer, hidden=32, layers=2)
        runs.append(train(model, tokenizer, Source(items, tokenizer, recipe), recipe, lambda: None))
    assert runs[0] == runs[1]
    assert len(runs[0]) == 20
    assert runs[0][-1] < 0.5 * runs[0][0]
    assert imitation(model, tokenizer, items, pad=0).loss < 0.5 * runs[0][0]


def test_parts_cover_each_step_once(tokenizer):
    item = demonstration()
    example, found = encode(item, tokenizer), parts(item, tokenizer)
    assert [part.kind for part in found] == ["decision", "search 1", "decision", "answer"]
    texts = [tokenizer.decode(example.ids[part.start : part.stop]) for part in found]
    assert texts == [
        "<think> look up the city </think><search>",
        " Ulm </search>",
        "<think> i know </think><answer>",
        " Germany </answer>",
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has no demonstrations; expected one per line with the fields task_id, messages, segments"),
        ("{", "line 1: not a JSON object"),
        (line() + "\n" + line(messages=None), "line 2: field 'messages' is missing"),
        (line(segments=[]), "line 1: field 'segments' must be a list of text and train"),
        (line(segments=[{"text": FOUND, "train": False}]), "line 1: field 'segments' must be a list of text and train"),
        (line(messages=[{"role": "assistant", "content": "x"}]), "the last one the user's"),
    ],
)
def test_bad_files_are_named_in_one_sentence(tmp_path, capsys, content, says):
    path = tmp_path / "demos.jsonl"
    path.write_text(content)
    assert main(["--model", "tiny", "--demos", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert str(path) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_bad_model_and_missing_file(tmp_path, capsys):
    demos = tmp_path / "demos.jsonl"
    demos.write_text(line())
    assert main(["--model", "/nowhere", "--demos", str(demos), "--out", str(tmp_path / "out")]) == 2
    assert "--model /nowhere: expected tiny or a Hugging Face causal language model" in capsys.readouterr().err
    assert main(["--model", "tiny", "--demos", str(tmp_path / "no.jsonl"), "--out", str(tmp_path / "out")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("setting", [["--steps", "0"], ["--lr", "-1"], ["--practice", "2"], ["--minutes", "nan"]])
def test_bad_settings_exit_with_2(setting):
    with pytest.raises(SystemExit) as stopped:
        main(["--model", "tiny", "--demos", "x", "--out", "y", *setting])
    assert stopped.value.code == 2


def test_command_writes_a_folder_that_loads(tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    demos = tmp_path / "demos.jsonl"
    demos.write_text("\n".join([line()] * 3))
    out = tmp_path / "out"
    arguments = ["--model", "tiny", "--demos", str(demos), "--out", str(out), "--steps", "2", "--practice", "0.5"]
    assert main([*arguments, "--batch-tokens", "256", "--save-dtype", "float16"]) == 0
    assert "held-out loss" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert model.dtype == torch.float32
    assert (out / "model.safetensors").stat().st_size < 8_000_000
    assert encode(read_demonstrations(demos)[0], AutoTokenizer.from_pretrained(out)).ids


def test_steps_of_text_adventures_have_tags_of_their_own():
    step, seen = "<act> open red box </act>", "<obs> hall. red box: coin. you hold: nothing. </obs>"
    assert (tags_in(step), tags_in(STEP)) == (GAME_TAGS, TAGS)
    tokenizer = tiny_tokenizer([step, seen] * 3, GAME_TAGS)
    for tag in GAME_TAGS:
        assert len(tokenizer.encode(tag)) == 1
    item = Demonstration(
        task_id="game",
        messages=(Message(role="user", content="goal: take coin."),),
        segments=(Segment(text=step, train=True), Segment(text=seen, train=False), Segment(text=step, train=True)),
    )
    assert [part.kind for part in parts(item, tokenizer)] == ["decision", "act"] * 2


def test_steps_of_decision_nodes_have_tags_of_their_own_and_end_with_the_tokenizers_end():
    from envs.shop.demonstrator import END as END_OF_ANSWER

    typed, flat = '{"intent":"where","order":"5821"}', '<output>{"intent":"where","order":""}</output>'
    assert tags_in(typed) == tags_in(flat) == NODE_TAGS
    tokenizer = tiny_tokenizer([typed, flat] * 3, NODE_TAGS)
    for tag in NODE_TAGS:
        assert len(tokenizer.encode(tag)) == 1
    assert tokenizer.decode(tokenizer.encode(typed), skip_special_tokens=True) == typed
    assert tokenizer.encode(typed + END_OF_ANSWER)[-1] == tokenizer.eos_token_id
    asked = "Is order 5821, of 2026-03-09, on its way?"
    made = tiny_tokenizer([asked, typed] * 3, NODE_TAGS)
    for known in (made, as_loaded(made, tiny_model(made, hidden=32, layers=1))):
        assert len(known) == len(made)
        assert known.tokenize(typed)[-3:] == ["58", "21", '"}']
        assert [token for token in known.tokenize(asked) if token.isdigit()] == ["58", "21", "20", "26", "03", "09"]


def test_the_tiny_model_is_trained_with_the_tokens_that_its_saved_folder_gives(tmp_path):
    from transformers import AutoTokenizer

    demos = tmp_path / "demos.jsonl"
    demos.write_text("\n".join([line()] * 3))
    model, tokenizer = load("tiny", torch.float32, read_demonstrations(demos))
    save(model, tokenizer, tmp_path / "out", torch.float32)
    text = "Population 3501, in Ulm's in_time #9"
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode(text) == tokenizer.encode(text)
