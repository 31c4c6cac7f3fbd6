"""The search corpus: one short document per city and country, and Wikipedia lead sections.

City and country passages are one or two short sentences in a fixed form, so that a very small model can read them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.facts import City, Country, Facts
from envs.json_lines import json_lines
from envs.names import name_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One document, e.g. `Passage(id="city/2820256", title="Ulm", text="Ulm is a city in Germany. ...")`."""

    id: str
    title: str
    text: str


def corpus(facts: Facts) -> Iterator[Passage]:
    """All documents, in a fixed order: countries, cities, Wikipedia leads.

    A lead whose title is also the name of a city or country is titled `"Germany (overview)"`, so that an exact name
    finds the short passage first.
    """
    taken = set()
    for country in facts.countries.values():
        taken.add(name_key(country.name))
        yield Passage(id=f"country/{country.iso}", title=country.name, text=country_text(country))
    for city in facts.cities:
        taken.add(name_key(city.name))
        text = city_text(city, facts.countries[city.country].name)
        yield Passage(id=f"city/{city.id}", title=city.name, text=text)
    for number, article in enumerate(facts.articles):
        title = f"{article.title} (overview)" if name_key(article.title) in taken else article.title
        yield Passage(id=f"wikipedia/{number}", title=title, text=article.text)


def city_text(city: City, country: str) -> str:
    """E.g. `"Ulm is a city in Germany. Its time zone is Europe/Berlin. Population 120451."`."""
    return f"{city.name} is a city in {country}. Its time zone is {city.timezone}. Population {city.population}."


def country_text(country: Country) -> str:
    """E.g. `"Germany has capital Berlin; currency Euro; ... internet domain .de."`; unknown facts are left out."""
    facts = (
        ("capital", country.capital),
        ("currency", country.currency),
        ("continent", country.continent),
        ("calling code", country.calling_code),
        ("largest neighbour", country.largest_neighbour),
        ("highest point", country.highest_point),
        ("internet domain", country.domain),
    )
    return f"{country.name} has " + "; ".join(f"{label} {value}" for label, value in facts if value) + "."


def write_corpus(path: Path, facts: Facts) -> int:
    """Writes one JSON object per line (fields id, title, text); returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for passage in corpus(facts):
            record = {"id": passage.id, "title": passage.title, "text": passage.text}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_corpus(path: Path) -> list[Passage]:
    """Reads a corpus file; fields other than id, title and text are ignored, a missing title or id is empty.

    Raises ValueError naming file and line when the file cannot be read, a line is not such an object, or an id is used
    twice.
    """
    return list(passages(path))


def passages(path: Path) -> Iterator[Passage]:
    """The documents of a corpus file one by one; raises as `read_corpus` does, and when there is none."""
    number, lines = 0, dict[str, int]()
    try:
        for number, record in json_lines(path):
            passage = _passage(record, f"{path} line {number}")
            if passage.id and (first := lines.setdefault(passage.id, number)) != number:
                raise ValueError(
                    f"{path} line {number}: id {passage.id!r} is already used in line {first}; ids must be unique"
                )
            yield passage
    except OSError as error:
        raise ValueError(f"corpus {path} cannot be read: {error.strerror or error}") from None
    if not number:
        raise ValueError(f"corpus {path} has no documents; expected one JSON object per line with id, title, text")


def _passage(record: Any, place: str) -> Passage:
    if not isinstance(record, dict):
        raise ValueError(f"{place}: expected an object with the text fields id, title, text")
    identifier, title, text = record.get("id", ""), record.get("title") or "", record.get("text")
    if not isinstance(identifier, str | int):
        raise ValueError(f"{place}: field 'id' must be a text or a number")
    if not isinstance(title, str):
        raise ValueError(f"{place}: field 'title' must be a text")
    if not isinstance(text, str):
        raise ValueError(f"{place}: expected an object with the text fields id, title, text")
    return Passage(id=str(identifier), title=title, text=text)
