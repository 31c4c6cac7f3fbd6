"""What the shop sells, to whom, and under which rules: the material that a database is generated from."""

from typing import NamedTuple

FIRST_NAMES = (
    *("Anna", "Ben", "Carla", "David", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Karim", "Lena", "Marco"),
    *("Nadia", "Oscar", "Paula", "Quentin", "Rosa", "Samir", "Tina", "Umut", "Vera", "Willem", "Yara", "Zoe"),
)
LAST_NAMES = (
    *("Adler", "Berg", "Costa", "Dahl", "Ebert", "Fischer", "Garcia", "Haas", "Ivanov", "Jansen", "Keller", "Lopez"),
    *("Meyer", "Novak", "Olsen", "Petit", "Quast", "Rossi", "Silva", "Toth", "Urban", "Vogel", "Weber", "Young"),
)
STREETS = ("Oak Street", "Mill Lane", "Station Road", "High Street", "Park Avenue", "Church Road", "River Walk")
CITIES = ("Ulm", "Porto", "Lyon", "Graz", "Turin", "Leeds", "Ghent", "Malaga", "Bergen", "Cork", "Lodz", "Basel")
CARRIERS = ("NordPost", "Swift", "BlueVan")


class Product(NamedTuple):
    """One article."""

    name: str
    category: str
    cents: int
    """Price of one piece."""


PRODUCTS = (
    Product("lamp", "home", 3990),
    Product("kettle", "home", 4550),
    Product("chair", "home", 8900),
    Product("mirror", "home", 6275),
    Product("blanket", "home", 2995),
    Product("jacket", "clothing", 11900),
    Product("pair of boots", "clothing", 9480),
    Product("scarf", "clothing", 1890),
    Product("sweater", "clothing", 5400),
    Product("headset", "electronics", 7999),
    Product("keyboard", "electronics", 6450),
    Product("camera", "electronics", 23900),
    Product("speaker", "electronics", 5725),
)


class Policy(NamedTuple):
    """One rule of the shop."""

    topic: str
    category: str
    """Of the article; `any` for all."""
    days: int | None
    """Days after delivery within which a request is granted; None where a stage decides."""
    stage: str | None
    """The order's status in which a request is granted."""
    text: str


POLICIES = (
    Policy("refund", "home", 30, None, "Home goods may be returned within 30 days of delivery."),
    Policy("refund", "clothing", 30, None, "Clothing may be returned within 30 days of delivery."),
    Policy("refund", "electronics", 14, None, "Electronics may be returned within 14 days of delivery."),
    Policy("damage", "any", 60, None, "Damaged goods are replaced if told within 60 days of delivery."),
    Policy("cancel", "any", None, "processing", "An order may be cancelled until it is shipped."),
    Policy("address", "any", None, "processing", "The address may be changed until the order is shipped."),
)
