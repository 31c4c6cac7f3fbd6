import asyncio
import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from small_world import FACTS

from envs.corpus import corpus, write_corpus
from envs.demonstrator import Habits, demonstrate, main, success_lines
from envs.facts import Article, load_facts, source_versions
from envs.families import BORN_EARLIER, FAMILIES, QUICKSTART, Atlas, split_of
from envs.prepare import prepare, write_tasks
from envs.questions import family_tasks, mix
from envs.retriever import LocalRetriever
from envs.rewards import PaperReward
from envs.scoring import exact_match
from envs.search_env import SearchEnv
from envs.tasks import load_tasks


def small_tasks(name):
    atlas = Atlas(FACTS)
    return {task.id: task for split in ("train", "heldout") for task in family_tasks(FACTS, atlas, name, split, 0)}


@pytest.fixture(scope="module")
def facts():
    return load_facts()


@pytest.fixture(scope="module")
def retriever(facts):
    return LocalRetriever(list(corpus(facts)))


@pytest.mark.parametrize(
    ("family", "question", "truth"),
    [
        ("city_country", "In which country is the city Ulm ?", "Germany"),
        ("city_population", "What is the population of the city Ulm ?", "120451"),
        ("country_capital", "What is the capital of the country of the city Ulm ?", "Berlin"),
        ("country_calling_code", "What is the calling code of the country of the city Ulm ?", "49"),
        ("capital_timezone", "What is the time zone of the capital of the country of the city Ulm ?", "Europe/Berlin"),
        (
            "neighbour_capital",
            "What is the capital of the largest neighbour of the country of the city Ulm ?",
            "Lutetia",
        ),
    ],
)
def test_questions_about_ulm(family, question, truth):
    task = small_tasks(family)[f"{family}/ulm"]
    assert (task.prompt[0].content, task.truth) == (question, (truth,))
    assert task.meta["hops"] == FAMILIES[family].hops
    assert task.meta["entity"] == "Ulm"


def test_who_is_not_asked_about():
    asked = {task.meta["entity"] for task in small_tasks("city_country").values()}
    assert asked == {"Ulm", "Bonn", "Lyon", "Nizza", "Neu-Ulm"}  # no capitals, and not Halle, of which there are two
    # Bonn is in Berlin's time zone and both countries pay in euros: one search less would do.
    assert set(small_tasks("capital_timezone")) == {"capital_timezone/ulm"}
    assert small_tasks("neighbour_currency") == {}


def article(title, born):
    return Article(title=title, text="", born=born)


def test_who_was_born_earlier():
    facts = replace(FACTS, articles=tuple(article(name, 1850 + number) for number, name in enumerate("ABCDEFGHIJ")))
    tasks = list(family_tasks(facts, Atlas(facts), BORN_EARLIER, "train", 0))
    assert len(tasks) > 1
    for task in tasks:
        one, two = task.meta["entity"].split(" | ")
        assert task.prompt[0].content == f"Who was born earlier , {one} or {two} ?"
        assert task.truth == (min(one, two),)


def test_splits_share_no_city(facts):
    sets = {
        split: mix(facts, families=QUICKSTART, split=split, count=count, seed=1, hops=(1, 2, 3))
        for split, count in (("train", 600), ("heldout", 60))
    }
    for split, count in (("train", 200), ("heldout", 20)):
        assert Counter(task.meta["hops"] for task in sets[split]) == {1: count, 2: count, 3: count}
        assert {task.meta["split"] for task in sets[split]} == {split}
    train, heldout = ({task.meta["entity"] for task in sets[split]} for split in ("train", "heldout"))
    assert not train & heldout
    ids = [task.id for tasks in sets.values() for task in tasks]
    assert len(set(ids)) == len(ids)
    again = mix(facts, families=QUICKSTART, split="heldout", count=60, seed=1, hops=(1, 2, 3))
    assert again == sets["heldout"]


def test_split_share():
    held_out = sum(split_of(f"city/{number}") == "heldout" for number in range(10_000))
    assert 1350 < held_out < 1650  # 15 % give or take four standard deviations


def test_mix_says_what_is_missing():
    with pytest.raises(ValueError, match="no family of 3 hops among city_country"):
        mix(FACTS, families=["city_country"], split="train", count=9, seed=0, hops=(1, 3))
    with pytest.raises(ValueError, match=r"the facts yield only \d train questions of 1 hops, but 99 were asked for"):
        mix(FACTS, families=["city_country"], split="train", count=99, seed=0, hops=(1,))
    with pytest.raises(ValueError, match="unknown family 'city_moon'; accepted: city_country, "):
        mix(FACTS, families=["city_moon"], split="train", count=1, seed=0, hops=(1,))


def test_a_missing_source_names_the_command():
    with pytest.raises(
        ValueError, match="package no-such-facts is not installed; run: pip install --no-deps no-such-f"
    ):
        source_versions(["no-such-facts"])


def test_real_facts(facts):
    germany = facts.countries["DE"]
    assert (germany.capital, germany.currency, germany.calling_code) == ("Berlin", "Euro", "49")
    assert (germany.largest_neighbour, germany.highest_point) == ("France", "Zugspitze")
    assert (facts.countries["CO"].capital, facts.countries["CO"].capital_alias) == ("Bogotá", "Bogota")
    assert {page.title: page.born for page in facts.articles}["Alvar Aalto"] == 1898
    assert {page.title: page.born for page in facts.articles}["Aristotle"] is None  # born before year 1


def test_exact_names_find_their_own_passage(facts, retriever):
    atlas = Atlas(facts)
    wanted = [(city.name, f"city/{city.id}") for city in random.Random(0).sample(atlas.askable["train"], 1500)]
    wanted += [(country.name, f"country/{country.iso}") for country in atlas.findable_countries.values()]
    capitals = [atlas.findable.get(country.capital_id) for country in facts.countries.values()]
    wanted += [(city.name, f"city/{city.id}") for city in capitals if city]
    found = sum(retriever.find(name, 1)[0][0].id == identifier for name, identifier in wanted)
    assert found / len(wanted) >= 0.98


async def test_the_expert_answers_every_family(facts, retriever):
    env = SearchEnv(retriever, score=exact_match, reward=PaperReward())
    tasks = mix(facts, families=list(FAMILIES), split="heldout", count=300, seed=0, hops=(1, 2, 3))
    expert = Habits(early=0.0, wrong=0.0)
    demos = [await demonstrate(env, task, expert, random.Random(0)) for task in tasks]
    assert success_lines(demos) == [
        *(f"hops {hops}: 1.000 of 100" for hops in (1, 2, 3)),
        "total: 1.000 of 300",
    ]
    assert [sum(train for _, train in demo.segments) for demo in demos] == [task.meta["hops"] + 1 for task in tasks]


def play(habits, family="neighbour_capital"):
    env = SearchEnv(LocalRetriever(list(corpus(FACTS))), score=exact_match, reward=PaperReward())
    task = small_tasks(family)[f"{family}/ulm"]
    return asyncio.run(demonstrate(env, task, habits, random.Random(0)))


def test_a_demonstration_word_by_word():
    demo = play(Habits(early=0.0, wrong=0.0), "country_capital")
    ulm = "Ulm: Ulm is a city in Germany. Its time zone is Europe/Busingen. Population 120451."
    facts = "capital Berlin; currency Euro; continent Europe; calling code 49; largest neighbour France"
    assert demo.segments == [
        ("<think> look up the city </think><search> Ulm </search>", True),
        (f"<information> {ulm} </information>", False),
        ("<think> look up the country </think><search> Germany </search>", True),
        (f"<information> Germany: Germany has {facts}; internet domain .de. </information>", False),
        ("<think> i know </think><answer> Berlin </answer>", True),
    ]


def test_habits():
    early = play(Habits(early=1.0, wrong=0.0))
    assert early.segments[-1][0] == "<think> i know </think><answer> Germany </answer>"
    assert (early.score, len(early.segments)) == (0.0, 3)
    # Three needed searches in four turns leave room for one useless one.
    wrong = play(Habits(early=0.0, wrong=1.0, max_turns=4))
    queries = [text.split("<search>")[1].split("<")[0].strip() for text, agent in wrong.segments[:-1] if agent]
    assert queries == ["Ulm", "Ulm", "Germany", "France"]
    assert wrong.segments[-2][0].endswith("<last/>")
    assert wrong.score == 1.0


def test_the_demonstrator_command(tmp_path, capsys):
    write_corpus(tmp_path / "corpus.jsonl", FACTS)
    write_tasks(tmp_path / "tasks.jsonl", list(small_tasks("country_capital").values()))
    common = ["--tasks", str(tmp_path / "tasks.jsonl"), "--corpus", str(tmp_path / "corpus.jsonl")]
    out = tmp_path / "demos.jsonl"
    assert main([*common, "--out", str(out), "--early", "0", "--wrong", "0"]) == 0
    assert "hops 2: 1.000 of 5" in capsys.readouterr().out
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert {record["task_id"] for record in records} == set(small_tasks("country_capital"))
    assert [segment["train"] for segment in records[0]["segments"]] == [True, False, True, False, True]
    first = out.read_bytes()
    assert main([*common, "--out", str(out), "--early", "0.5"]) == 0
    half = out.read_bytes()
    assert main([*common, "--out", str(out), "--early", "0.5"]) == 0
    assert first != half == out.read_bytes()
    (tmp_path / "tasks.jsonl").write_text('{"id": "mine", "prompt": "Where ?", "truth": "Ulm"}')
    assert main([*common, "--out", str(out)]) == 2
    assert "task mine: the demonstrator plays only the families city_country, " in capsys.readouterr().err


def test_prepare_is_idempotent(tmp_path, facts):
    out = tmp_path / "data"

    def make(heldout=9, seed=0):
        return prepare(out, QUICKSTART, [1, 2, 3], 30, heldout, seed, facts_of=lambda: facts)

    def files():
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}

    assert "30 training and 9 held-out questions" in make()
    before = files()
    assert set(before) == {"corpus.jsonl", "train.jsonl", "heldout.jsonl", "manifest.json"}
    assert "nothing to do" in make()
    assert files() == before
    assert len(load_tasks(out / "train.jsonl")) == 30
    assert json.loads((out / "manifest.json").read_text())["made_with"]["packages"] == source_versions()
    (out / "heldout.jsonl").unlink()
    assert "9 held-out questions" in make()
    assert {name: data for name, (_, data) in files().items()} == {name: data for name, (_, data) in before.items()}
    with pytest.raises(ValueError, match="both must be at least 1"):
        make(heldout=0)
