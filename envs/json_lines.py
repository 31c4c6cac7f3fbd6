"""JSON Lines from files that nobody has looked at yet: what a line may be, and one sentence for one that is not.

Memory stays bounded whatever the file holds: a longer line is refused before it is read to its end.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

MAX_LINE_BYTES = 2**24
"""Longest line, 16 MiB: about 3,000 pages of text, far beyond any context."""
BOM = b"\xef\xbb\xbf"
"""What some editors write before UTF-8 text; accepted and left out."""


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number from 1, value) of each line that is not blank; Windows line ends are fine.

    Raises ValueError, one sentence naming file and line, for a line that is too long, not UTF-8 or not JSON, and
    OSError for a file that cannot be read.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(
                    f"{path} line {number}: longer than {MAX_LINE_BYTES:,} bytes, the most that a line may have"
                )
            line = line.removeprefix(BOM) if number == 1 else line
            if line.strip():
                yield number, _value(line, f"{path} line {number}")


def _value(line: bytes, place: str) -> Any:
    line = line.rstrip(b"\r\n")
    if b"\0" in line:
        raise ValueError(f"{place}: holds NUL bytes, as UTF-16 text does, or a file that was being written in a crash")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise ValueError(f"{place}: not UTF-8 text (byte 0x{byte:02x} after {error.start} bytes)") from None
    try:
        value = json.loads(text, parse_constant=_no_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{place}: holds half of a surrogate pair (an escape such as \\ud800), which is no text"
        ) from None
    except RecursionError:
        raise ValueError(f"{place}: not a JSON object: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{place}: not a JSON object: {_at_column(error)}") from None
    return value


def _at_column(error: ValueError) -> str:
    """Without "line 1", which is the line's own and would be taken for the file's."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
