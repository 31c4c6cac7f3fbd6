"""Two countries that fit on paper: Ulm and Bonn in Germany, Lyon and Nizza in France."""

from envs.facts import Article, City, Country, Facts


def city(number, name, country, timezone, population):
    return City(id=number, name=name, country=country, timezone=timezone, population=population)


def country(iso, name, capital, capital_id, code, neighbour):
    return Country(
        iso=iso,
        name=name,
        capital=capital,
        capital_alias="",
        capital_id=capital_id,
        currency="Euro",
        continent="Europe",
        calling_code=code,
        domain=f".{iso.lower()}",
        largest_neighbour=neighbour,
        highest_point="",
    )


FACTS = Facts(
    cities=(
        city(1, "Ulm", "DE", "Europe/Busingen", 120451),
        city(2, "Bonn", "DE", "Europe/Berlin", 313125),
        city(3, "Berlin", "DE", "Europe/Berlin", 3426354),
        city(4, "Lyon", "FR", "Europe/Paris", 522969),
        city(5, "Nizza", "FR", "Europe/Paris", 342669),
        city(6, "Lutetia", "FR", "Europe/Paris", 2138551),
        city(7, "Neu-Ulm", "DE", "Europe/Berlin", 57237),
        city(8, "Halle", "DE", "Europe/Berlin", 234107),
        city(9, "Halle", "FR", "Europe/Paris", 16000),
    ),
    countries={
        "DE": country("DE", "Germany", "Berlin", 3, "49", "France"),
        "FR": country("FR", "France", "Lutetia", 6, "33", "Germany"),
    },
    articles=(
        Article(title="Berlin", text="Capital of Germany. Berlin is the largest city of Germany by far.", born=None),
        Article(title="Albert Einstein", text="Physicist (1879–1955). He was born in Ulm.", born=1879),
        Article(title="Max Planck", text="Physicist (1858–1947).", born=1858),
    ),
)
