"""The families of questions: a template each, and the path of facts that answers it.

E.g. `country_capital` asks "What is the capital of the country of the city Ulm ?" and needs two searches: Ulm, then
Germany. There is a space before "?" and around every name, so that a byte-level tokenizer cuts a name into the same
pieces in question, query and passage.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from envs.facts import City, Country, Facts, unique_names
from envs.names import name_key

LONGEST_NAME = 24
"""Cities with longer names, in characters, are not asked about: they make poor queries."""

HELD_OUT_PERCENT = 15
"""Share of the cities (by hash) that appear in held-out questions only."""

Answer = Callable[["Atlas", City], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kind of question about a city."""

    name: str
    template: str
    """With the place holder `{city}`."""
    path: tuple[str, ...]
    """Relation read from each passage in turn, e.g. `("country", "capital")`; its length is the number of searches."""
    answer: Answer
    """Accepted answers, best first; empty when the question has no good answer for this city."""

    @property
    def hops(self) -> int:
        """How many passages must be read."""
        return len(self.path)


def split_of(entity: str) -> str:
    """`"heldout"` for 15 % of the entities, else `"train"`, by a hash of the entity's id."""
    digest = hashlib.sha256(entity.encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % 100 < HELD_OUT_PERCENT else "train"


class Atlas:
    """Looks up facts; knows which cities and countries a search by exact name finds."""

    def __init__(self, facts: Facts) -> None:
        city_keys = {name_key(city.name) for city in facts.cities}
        country_keys = {name_key(country.name) for country in facts.countries.values()}
        unique = unique_names(facts.cities) - country_keys
        self.place_keys = city_keys | country_keys
        self.countries = facts.countries
        self.findable = {city.id: city for city in facts.cities if name_key(city.name) in unique}
        self.findable_countries = {
            country.name: country for country in facts.countries.values() if name_key(country.name) not in city_keys
        }
        self.askable: dict[str, list[City]] = {"train": [], "heldout": []}
        """By split: cities with a short unique name, not capitals, in countries that can be found by name."""
        for city in facts.cities:
            if self._may_ask(city):
                self.askable[split_of(f"city/{city.id}")].append(city)

    def country(self, city: City) -> Country:
        """The country of a city."""
        return self.countries[city.country]

    def neighbour(self, city: City) -> Country | None:
        """The largest neighbour of the city's country, None when there is none or it cannot be found by name."""
        return self.findable_countries.get(self.country(city).largest_neighbour)

    def capital(self, city: City) -> City | None:
        """The capital of the city's country, None when it cannot be found by name."""
        return self.findable.get(self.country(city).capital_id or 0)

    def _may_ask(self, city: City) -> bool:
        country = self.country(city)
        short = len(city.name) <= LONGEST_NAME
        return (
            short
            and city.id in self.findable
            and city.id != country.capital_id
            and country.name in self.findable_countries
        )


def _capital_names(country: Country) -> tuple[str, ...]:
    return tuple(name for name in (country.capital, country.capital_alias) if name)


def _one(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


def _capital_population(atlas: Atlas, city: City) -> tuple[str, ...]:
    capital = atlas.capital(city)
    return (str(capital.population),) if capital and capital.population else ()


def _capital_timezone(atlas: Atlas, city: City) -> tuple[str, ...]:
    """Only where the capital's zone differs from the city's own: else one search would do."""
    capital = atlas.capital(city)
    return (capital.timezone,) if capital and capital.timezone != city.timezone else ()


def _neighbour(read: Callable[[Country], tuple[str, ...]]) -> Answer:
    """Reads a fact of the largest neighbour, only where it differs from the same fact of the city's own country."""

    def answer(atlas: Atlas, city: City) -> tuple[str, ...]:
        neighbour = atlas.neighbour(city)
        return () if neighbour is None or read(neighbour) == read(atlas.country(city)) else read(neighbour)

    return answer


OF = "of the country of the city {city} ?"
OF_CAPITAL = "of the capital of the country of the city {city} ?"
OF_NEIGHBOUR = "of the largest neighbour of the country of the city {city} ?"
FAMILIES = {
    family.name: family
    for family in (
        Family(
            name="city_country",
            template="In which country is the city {city} ?",
            path=("country",),
            answer=lambda atlas, city: (atlas.country(city).name,),
        ),
        Family(
            name="city_timezone",
            template="What is the time zone of the city {city} ?",
            path=("time zone",),
            answer=lambda atlas, city: (city.timezone,),
        ),
        Family(
            name="city_population",
            template="What is the population of the city {city} ?",
            path=("population",),
            answer=lambda atlas, city: _one(str(city.population or "")),
        ),
        Family(
            name="country_capital",
            template=f"What is the capital {OF}",
            path=("country", "capital"),
            answer=lambda atlas, city: _capital_names(atlas.country(city)),
        ),
        Family(
            name="country_currency",
            template=f"What is the currency {OF}",
            path=("country", "currency"),
            answer=lambda atlas, city: _one(atlas.country(city).currency),
        ),
        Family(
            name="country_continent",
            template=f"What is the continent {OF}",
            path=("country", "continent"),
            answer=lambda atlas, city: _one(atlas.country(city).continent),
        ),
        Family(
            name="country_calling_code",
            template=f"What is the calling code {OF}",
            path=("country", "calling code"),
            answer=lambda atlas, city: _one(atlas.country(city).calling_code),
        ),
        Family(
            name="country_neighbour",
            template=f"What is the largest neighbour {OF}",
            path=("country", "largest neighbour"),
            answer=lambda atlas, city: _one(atlas.country(city).largest_neighbour),
        ),
        Family(
            name="country_peak",
            template=f"What is the highest point {OF}",
            path=("country", "highest point"),
            answer=lambda atlas, city: _one(atlas.country(city).highest_point),
        ),
        Family(
            name="country_domain",
            template=f"What is the internet domain {OF}",
            path=("country", "internet domain"),
            answer=lambda atlas, city: _one(atlas.country(city).domain),
        ),
        Family(
            name="capital_timezone",
            template=f"What is the time zone {OF_CAPITAL}",
            path=("country", "capital", "time zone"),
            answer=_capital_timezone,
        ),
        Family(
            name="capital_population",
            template=f"What is the population {OF_CAPITAL}",
            path=("country", "capital", "population"),
            answer=_capital_population,
        ),
        Family(
            name="neighbour_capital",
            template=f"What is the capital {OF_NEIGHBOUR}",
            path=("country", "largest neighbour", "capital"),
            answer=_neighbour(_capital_names),
        ),
        Family(
            name="neighbour_currency",
            template=f"What is the currency {OF_NEIGHBOUR}",
            path=("country", "largest neighbour", "currency"),
            answer=_neighbour(lambda country: _one(country.currency)),
        ),
        Family(
            name="neighbour_calling_code",
            template=f"What is the calling code {OF_NEIGHBOUR}",
            path=("country", "largest neighbour", "calling code"),
            answer=_neighbour(lambda country: _one(country.calling_code)),
        ),
    )
}
"""Every question family about cities, by name."""
BORN_EARLIER = "born_earlier"
"""The family about two people: "Who was born earlier , X or Y ?", two searches side by side."""
QUICKSTART = (
    "city_country",
    "city_timezone",
    "country_capital",
    "country_currency",
    "country_continent",
    "country_calling_code",
    "capital_timezone",
    "capital_population",
    "neighbour_capital",
    "neighbour_calling_code",
)
"""Families of the quickstart: hops 1, 2 and 3 in equal parts."""


def hops_of(family: str) -> int:
    """Searches the family needs. Raises ValueError naming the accepted families."""
    if family == BORN_EARLIER:
        return 2
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}; accepted: {', '.join((*FAMILIES, BORN_EARLIER))}")
    return FAMILIES[family].hops
