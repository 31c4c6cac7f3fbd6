"""The search corpus: one short document per city and country, and Wikipedia lead sections.

City and country passages are one or two short sentences in a fixed form, so that a very small model can read them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envs.facts import City, Country, Facts
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
    """Reads a corpus file; fields other than id, title and text are ignored, a missing title is empty.

    Raises ValueError naming file and line when the file cannot be read or a line is not such an object.
    """
    passages = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    passages.append(_passage(line, f"{path} line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"corpus {path} cannot be read: {error}") from None
    if not passages:
        raise ValueError(f"corpus {path} has no documents; expected one JSON object per line with id, title, text")
    return passages


def _passage(line: str, place: str) -> Passage:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{place}: not a JSON object: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise ValueError(f"{place}: expected an object with the text fields id, title, text")
    return Passage(id=str(record.get("id", "")), title=str(record.get("title") or ""), text=record["text"])
