"""Keeps secrets out of what is written for people: settings, logs, reports.

Secrets are known by name (a setting `api_key`, an environment variable `WANDB_API_KEY`), by place (the login in
`http://user:password@host`), and by value: what such an environment variable holds is masked wherever it turns up.
"""

import logging
import os
import re
from collections.abc import Mapping
from typing import TextIO

MASK = "***"
SHORTEST = 8
"""Values of environment variables with fewer characters are no secrets, and masking them would spoil other text."""
_SECRETS = ("key", "apikey", "token", "secret", "password", "passwd", "credential", "credentials", "auth")
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")
_URL_LOGIN = re.compile(r"(?<=://)[^/?#\s'\"]+@")
_URL_VALUE = re.compile(r"([?&])([\w.-]+)=([^&#\s'\"]+)")


def is_secret(name: str) -> bool:
    """Whether a name says that its value is a secret, e.g. `"api_key"` or `"HF_TOKEN"`; not `"max_turn_tokens"`."""
    return any(word.lower() in _SECRETS for word in _WORD.findall(name))


def masked_text(text: str) -> str:
    """The text with `***` for logins and keys inside URLs and for the values of secret environment variables.

    E.g. `"http://me:pw@host/?api_key=a&k=3"` gives `"http://***@host/?api_key=***&k=3"`.
    """
    for value in _secret_values():
        text = text.replace(value, MASK)
    text = _URL_LOGIN.sub(f"{MASK}@", text)
    return _URL_VALUE.sub(lambda m: f"{m[1]}{m[2]}={MASK if is_secret(m[2]) else m[3]}", text)


def masked(value: object, *, secret: bool = False) -> object:
    """A copy of settings in which text under a secret name, and what `masked_text` finds, reads `***`.

    Only text is masked, so `limits.max_turn_tokens: 64` stays. Tuples become lists.
    """
    if isinstance(value, Mapping):
        return {str(name): masked(item, secret=secret or is_secret(str(name))) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, secret=secret) for item in value]
    if isinstance(value, str):
        return MASK if secret and value else masked_text(value)
    return value


class MaskedFormatter(logging.Formatter):
    """Log lines with `***` for what `masked_text` finds in them, whichever library wrote them; tracebacks too."""

    def format(self, record: logging.LogRecord) -> str:
        """One record, masked."""
        return masked_text(super().format(record))


def log_masked(stream: TextIO) -> None:
    """Sends this process's warnings to `stream`, masked, unless logging was set up before."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(MaskedFormatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def _secret_values() -> list[str]:
    """Of variables whose last word says so (`HF_TOKEN`, not `RAY_AUTH_MODE`); longest first: one may hold another."""
    found = {v for name, v in os.environ.items() if len(v) >= SHORTEST and is_secret(name.rpartition("_")[2])}
    return sorted(found, key=len, reverse=True)
