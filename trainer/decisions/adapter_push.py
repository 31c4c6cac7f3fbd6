"""Which rollout actor holds which version of which adapter, so that a push sends what changed and nothing else."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollout_workers.adapters import AdapterFile

Files = Mapping[str, AdapterFile]
"""Each adapter as the learner has it now."""


class AdapterHoldings:
    """What the actors hold. An actor that is not known here holds nothing: a new one, or one after a failed push."""

    def __init__(self) -> None:
        self._held: list[tuple[Any, dict[str, str]]] = []
        """Per actor each adapter's digest."""

    def of(self, actor: Any) -> dict[str, str]:
        """Digests of the adapters that an actor holds."""
        return next((held for known, held in self._held if known is actor), {})

    def due(
        self, actors: Sequence[Any], fetch: Callable[[dict[str, str]], Files]
    ) -> tuple[list[dict[str, bytes]], Files]:
        """(what each actor lacks: contents by adapter; all adapters of now).

        `fetch` asks the learner; it is told the digests that every actor has, whose contents may stay empty.
        """
        every = [self.of(actor) for actor in actors]
        shared = {name: digest for name, digest in every[0].items() if all(held.get(name) == digest for held in every)}
        files = fetch(shared)
        lacking = [
            {name: file.content for name, file in files.items() if held.get(name) != file.digest} for held in every
        ]
        return lacking, files

    def took(self, actors: Sequence[Any], files: Files) -> None:
        """All `actors` hold all of `files` now, and nobody else holds anything."""
        self._held = [(actor, {name: file.digest for name, file in files.items()}) for actor in actors]

    def forget(self) -> None:
        """Nobody holds anything that is known: a push failed."""
        self._held = []
