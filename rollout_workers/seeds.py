"""Seeds derived from names, so that a run's random choices never depend on timing or on which machine made them."""

import hashlib


def derive_seed(*parts: str | int) -> int:
    """A 31-bit seed from any sequence of parts, e.g. `derive_seed(run_seed, "train-3", task_id, tree, slot)`."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF
