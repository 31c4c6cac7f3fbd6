"""Makes tasks: which city is asked what, in which split. A pure function of the facts, the seed and the counts."""

import random
from collections.abc import Iterator, Sequence

from envs.facts import City, Facts
from envs.families import BORN_EARLIER, FAMILIES, Atlas, Family, hops_of, split_of
from envs.names import name_key
from envs.types import Message, Task


def family_tasks(facts: Facts, atlas: Atlas, name: str, split: str, seed: int) -> Iterator[Task]:
    """Tasks of one family and split, shuffled by `seed`; countries take turns, so that no large one dominates."""
    rng = random.Random(f"{seed}/{name}/{split}")
    if name == BORN_EARLIER:
        yield from _born_earlier(facts, atlas, split, rng)
        return
    family = FAMILIES[name]
    cities = list(atlas.askable[split])
    rng.shuffle(cities)
    turn: dict[str, int] = {}
    ranked: list[tuple[int, int, City, tuple[str, ...]]] = []
    for city in cities:
        if answers := family.answer(atlas, city):
            ranked.append((turn.get(city.country, 0), len(ranked), city, answers))
            turn[city.country] = turn.get(city.country, 0) + 1
    for _, _, city, answers in sorted(ranked, key=lambda item: item[:2]):
        yield _city_task(family, city, answers, split)


def _city_task(family: Family, city: City, answers: tuple[str, ...], split: str) -> Task:
    return Task(
        id=f"{family.name}/{name_key(city.name).replace(' ', '-')}",
        prompt=(Message(role="user", content=family.template.format(city=city.name)),),
        truth=answers,
        meta={"hops": family.hops, "family": family.name, "split": split, "entity": city.name},
    )


def _born_earlier(facts: Facts, atlas: Atlas, split: str, rng: random.Random) -> Iterator[Task]:
    """Endless in practice: pairs of people of one split, born in different years, no pair twice."""
    known = [page for page in facts.articles if page.born and name_key(page.title) not in atlas.place_keys]
    people = [page for page in known if split_of(f"person/{page.title}") == split]
    seen: set[frozenset[str]] = set()
    for _ in range(len(people) ** 2):
        one, two = rng.sample(people, 2)
        pair = frozenset((one.title, two.title))
        if one.born == two.born or pair in seen:
            continue
        seen.add(pair)
        assert one.born is not None
        assert two.born is not None
        slug = "-or-".join(name_key(title).replace(" ", "-") for title in sorted(pair))
        yield Task(
            id=f"{BORN_EARLIER}/{slug}",
            prompt=(Message(role="user", content=f"Who was born earlier , {one.title} or {two.title} ?"),),
            truth=((one if one.born < two.born else two).title,),
            meta={"hops": 2, "family": BORN_EARLIER, "split": split, "entity": f"{one.title} | {two.title}"},
        )


def mix(facts: Facts, *, families: Sequence[str], split: str, count: int, seed: int, hops: Sequence[int]) -> list[Task]:
    """`count` tasks, shared equally by the `hops` and, within one number of hops, by its families; then shuffled.

    Raises ValueError when a number of hops has no family or the facts do not yield enough questions.
    """
    atlas = Atlas(facts)
    groups = {hop: [name for name in families if hops_of(name) == hop] for hop in hops}
    tasks: list[Task] = []
    for place, (hop, names) in enumerate(groups.items()):
        wanted = count * (place + 1) // len(groups) - count * place // len(groups)
        if wanted and not names:
            raise ValueError(f"no family of {hop} hops among {', '.join(families)}")
        sources = [family_tasks(facts, atlas, name, split, seed) for name in names]
        tasks += _take_turns(sources, wanted, f"{split} questions of {hop} hops")
    assert len({task.id for task in tasks}) == len(tasks)
    random.Random(f"{seed}/{split}").shuffle(tasks)
    return tasks


def _take_turns(sources: list[Iterator[Task]], wanted: int, what: str) -> list[Task]:
    taken: list[Task] = []
    while len(taken) < wanted:
        if not sources:
            raise ValueError(f"the facts yield only {len(taken)} {what}, but {wanted} were asked for")
        source = sources.pop(0)
        task = next(source, None)
        if task is not None:
            taken.append(task)
            sources.append(source)
    return taken
