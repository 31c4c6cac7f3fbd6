"""Which tokens of a row go through which adapter: said once per forward pass, read by every adapted layer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class Route:
    """The route that the tokens of the current pass take; one for all adapted layers of a model.

    It stays until another is set, since checkpointed layers run once more in the backward pass, long after the forward
    pass has ended.
    """

    def __init__(self, voices: Mapping[str, int]) -> None:
        """`voices`: each adapter with the number that its tokens carry, e.g. `{"intent": 0, "response": 3}`."""
        self._voices = dict(voices)
        self.follow(None)

    def follow(self, voice_T: Tensor | None) -> None:
        """From now on token t goes through the adapter with the number `voice_T[t]`, if there is one; None: none do."""
        self._voice_T = voice_T
        self._shares: dict[tuple[str, ...], tuple[Tensor, list[int]]] = {}

    @contextmanager
    def detour(self, voice_T: Tensor | None) -> Iterator[None]:
        """`follow` within the block; afterwards the route is the one before."""
        before = self._voice_T, self._shares
        self.follow(voice_T)
        try:
            yield
        finally:
            self._voice_T, self._shares = before

    def share(self, names: tuple[str, ...], device: torch.device) -> tuple[Tensor, list[int]]:
        """(places of the tokens of the adapters `names`, adapter after adapter; how many each has).

        E.g. voices `[0, 0, 3, -1, 0]` and names `("intent", "response")` as above give `([0, 1, 4, 2], [3, 1])`.
        """
        if names not in self._shares:
            places = [self._places(name, device) for name in names]
            self._shares[names] = torch.cat(places), [len(place) for place in places]
        return self._shares[names]

    def _places(self, name: str, device: torch.device) -> Tensor:
        if self._voice_T is None:
            return torch.empty(0, dtype=torch.long, device=device)
        return (self._voice_T == self._voices[name]).nonzero()[:, 0]
