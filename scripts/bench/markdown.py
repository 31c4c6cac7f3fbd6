"""What the pages of results are made of."""

from collections.abc import Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *rows])


def verdict(is_reached: bool) -> str:
    """What a page says of a goal."""
    return "reached" if is_reached else "**missed**"
