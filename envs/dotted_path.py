"""Finds what users name by a dotted path: reward functions and environments of their own."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any


def imported(key: str, path: str, *, example: str, what: str) -> Callable[..., Any]:
    """The callable at a dotted path such as `"my_package.rewards.brevity"`, imported from the import path only.

    `key` is the setting that names it, `example` a good path, `what` what is accepted. Raises ValueError naming key and
    path when it is not a dotted name, cannot be imported or is not callable.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{key} {path!r} is not a dotted path such as {example}")
    try:
        found: Any = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{key} {path!r} cannot be imported: {_one_line(error)}") from None
    except (Exception, SystemExit) as error:  # whatever a user's module does while it is imported
        raise ValueError(f"{key} {path!r} cannot be imported: {type(error).__name__}: {_one_line(error)}") from None
    if not callable(found):
        raise ValueError(f"{key} {path!r} is not a function; accepted: {what}")
    made: Callable[..., Any] = found
    return made


def check_call(key: str, path: str, function: Callable[..., Any], *arguments: object, **options: object) -> None:
    """Raises ValueError naming key and path when a function found by `imported` can't be called so; calls nothing.

    Functions that don't say what they take (some built into Python) pass.
    """
    try:
        inspect.signature(function).bind(*arguments, **options)
    except TypeError as error:
        given = ", ".join([*(f"an {type(item).__name__}" for item in arguments), *options]) or "nothing"
        raise ValueError(f"{key} {path!r} cannot be called with {given}: {_one_line(error)}") from None
    except ValueError:
        return


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
