"""The shop's database: its tables, how they are generated from a seed, and the few questions that may be asked.

All SQL stands in this module, and values reach it as parameters only. Opened databases are read-only.
"""

import random
import sqlite3
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

from envs.shop.catalogue import (
    CARRIERS,
    CITIES,
    FIRST_NAMES,
    LAST_NAMES,
    POLICIES,
    PRODUCTS,
    STREETS,
    Product,
)

TODAY = date(2026, 3, 31)
"""The day on which every ticket is written."""
TABLES = """
CREATE TABLE shop (today TEXT NOT NULL);
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL, street TEXT NOT NULL,
    city TEXT NOT NULL);
CREATE TABLE orders (id TEXT PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers, placed TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('processing', 'shipped', 'delivered', 'cancelled')),
    category TEXT NOT NULL, total_cents INTEGER NOT NULL);
CREATE TABLE order_lines (order_id TEXT NOT NULL REFERENCES orders, line INTEGER NOT NULL, product TEXT NOT NULL,
    quantity INTEGER NOT NULL, cents INTEGER NOT NULL, PRIMARY KEY (order_id, line));
CREATE TABLE shipments (order_id TEXT PRIMARY KEY REFERENCES orders, carrier TEXT NOT NULL, shipped TEXT NOT NULL,
    expected TEXT NOT NULL, delivered TEXT);
CREATE TABLE policies (topic TEXT NOT NULL, category TEXT NOT NULL, days INTEGER, stage TEXT, text TEXT NOT NULL,
    PRIMARY KEY (topic, category));
CREATE INDEX orders_of_customer ON orders (customer_id);
"""
ORDER = """
SELECT orders.status, orders.category, orders.total_cents, shipments.shipped, shipments.expected, shipments.delivered
FROM orders LEFT JOIN shipments ON shipments.order_id = orders.id
WHERE orders.id = ? AND orders.customer_id = ?
"""
POLICY = "SELECT days, stage FROM policies WHERE topic = ? AND category IN (?, 'any')"
ALL_ORDERS = """
SELECT orders.id, orders.customer_id, customers.name, customers.city, order_lines.product
FROM orders JOIN customers ON customers.id = orders.customer_id
JOIN order_lines ON order_lines.order_id = orders.id AND order_lines.line = 1
ORDER BY orders.id
"""
STATUSES = {"processing": 0.28, "shipped": 0.24, "delivered": 0.44, "cancelled": 0.04}
"""Share of the orders in each status."""


class Order(NamedTuple):
    """One order as the customer service sees it."""

    status: str
    category: str
    total_cents: int
    shipped: str | None
    expected: str | None
    delivered: str | None

    @property
    def amount(self) -> str:
        """E.g. `"49.90"`."""
        return f"{self.total_cents // 100}.{self.total_cents % 100:02d}"

    @property
    def days(self) -> str:
        """Days since delivery, e.g. `"12"`; empty for an order that has not arrived."""
        return str((TODAY - date.fromisoformat(self.delivered)).days) if self.delivered else ""


class Listed(NamedTuple):
    """One order in a list of all: what tickets are made from."""

    id: str
    customer: int
    name: str
    city: str
    product: str
    """Of its first line."""


class ShopDatabase:
    """Read-only access; each process opens the file for itself, at the first question."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError when there is no such file."""
        if not path.is_file():
            raise ValueError(f"The shop database {path} does not exist; make it with: python -m envs.shop.prepare")
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def __getstate__(self) -> Path:
        return self._path

    def __setstate__(self, path: Path) -> None:
        self._path, self._connection = path, None

    def order(self, order: str, customer: int) -> Order | None:
        """The customer's order; None when the customer has none of that number."""
        row = self._open().execute(ORDER, (order, customer)).fetchone()
        return Order(*row) if row else None

    def limit(self, topic: str, category: str) -> str:
        """Days, or the stage, within which a request is granted, e.g. `"30"`; empty when there is no such rule."""
        row = self._open().execute(POLICY, (topic, category)).fetchone()
        return "" if row is None else str(row[1] if row[0] is None else row[0])

    def orders(self) -> list[Listed]:
        """All orders, by number."""
        return [Listed(*row) for row in self._open().execute(ALL_ORDERS)]

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            address = f"{self._path.resolve().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        return self._connection


def write_database(path: Path, *, customers: int, orders: int, seed: int) -> int:
    """Makes the file anew; returns its number of rows. The same seed and counts give the same rows."""
    if not 1 <= customers <= orders <= 9000:
        raise ValueError(f"{customers} customers, {orders} orders: accepted are 1 <= customers <= orders <= 9000")
    path.unlink(missing_ok=True)
    rng = random.Random(f"shop/{seed}")
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(TABLES)
        connection.execute("INSERT INTO shop VALUES (?)", (TODAY.isoformat(),))
        connection.executemany("INSERT INTO policies VALUES (?, ?, ?, ?, ?)", POLICIES)
        connection.executemany("INSERT INTO customers VALUES (?, ?, ?, ?, ?)", _customers(customers, rng))
        for number in sorted(rng.sample(range(1000, 10_000), orders)):
            _insert_order(connection, str(number), rng.randint(1, customers), rng)
    rows = connection.total_changes
    connection.close()
    return rows


def _customers(count: int, rng: random.Random) -> Iterator[tuple[int, str, str, str, str]]:
    for number in range(1, count + 1):
        first, last = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES)
        email = f"{first}.{last}.{number}@example.org".lower()
        yield number, f"{first} {last}", email, f"{rng.choice(STREETS)} {rng.randint(1, 120)}", rng.choice(CITIES)


def _insert_order(connection: sqlite3.Connection, order: str, customer: int, rng: random.Random) -> None:
    status = rng.choices(list(STATUSES), list(STATUSES.values()))[0]
    category = rng.choice(sorted({product.category for product in PRODUCTS}))
    lines = _lines(category, rng)
    total = sum(quantity * product.cents for product, quantity in lines)
    age = {"processing": (0, 2), "shipped": (3, 8), "delivered": (8, 110), "cancelled": (3, 60)}[status]
    placed = TODAY - timedelta(days=rng.randint(*age))
    row = (order, customer, placed.isoformat(), status, category, total)
    connection.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", row)
    for number, (product, quantity) in enumerate(lines, start=1):
        line = (order, number, product.name, quantity, product.cents)
        connection.execute("INSERT INTO order_lines VALUES (?, ?, ?, ?, ?)", line)
    if status in ("shipped", "delivered"):
        shipment = (order, rng.choice(CARRIERS), *_days_on_the_way(placed, status == "delivered", rng))
        connection.execute("INSERT INTO shipments VALUES (?, ?, ?, ?, ?)", shipment)


def _lines(category: str, rng: random.Random) -> list[tuple[Product, int]]:
    """One to three different articles of a category, with quantities."""
    sold = [product for product in PRODUCTS if product.category == category]
    chosen = rng.sample(sold, rng.randint(1, 3))
    return [(product, rng.choice((1, 1, 1, 2, 3))) for product in chosen]


def _days_on_the_way(placed: date, arrived: bool, rng: random.Random) -> tuple[str, str, str | None]:
    """Shipped, expected, and delivered where it has arrived: never before it was shipped, never after today."""
    shipped = placed + timedelta(days=rng.randint(1, 2))
    expected = shipped + timedelta(days=rng.randint(2, 5)) if arrived else TODAY + timedelta(days=rng.randint(1, 6))
    delivered = min(TODAY, expected + timedelta(days=rng.choice((-1, 0, 0, 1, 2)))) if arrived else None
    return shipped.isoformat(), expected.isoformat(), delivered.isoformat() if delivered else None
