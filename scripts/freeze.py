"""Prints the lock of this environment: every installed package that espalier-rl needs, directly or through others.

Not in it: packages that were tried and left behind, torch (the CPU build comes from elsewhere), and espalier-rl itself.
"""

import importlib.metadata
import re
import sys

from packaging.requirements import Requirement

EXTRAS = frozenset({"cpu", "dev", "smollm2", "facts", "textworld"})
LEFT_OUT = {"espalier-rl", "torch", "torchvision", "torchaudio", "torchcodec", "pip"}
"""torchvision from the package index does not load beside a CPU torch, and then neither does transformers."""


def normal(name: str) -> str:
    """The one spelling of a package name, e.g. `Jinja2` → `jinja2`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a requirement applies here, for a package installed with `extras`."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""})


def closure(name: str, extras: frozenset[str]) -> set[str]:
    """Names of all installed packages reachable from `name`; absent ones were left out on purpose."""
    installed = {normal(found.name): found for found in importlib.metadata.distributions()}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, extras)]
    while waiting:
        key = waiting.pop()
        if key in seen or key[0] not in installed:
            continue
        seen.add(key)
        requirements = [Requirement(text) for text in installed[key[0]].requires or ()]
        waiting += [(normal(r.name), frozenset(r.extras)) for r in requirements if needed(r, key[1])]
    return {package for package, _ in seen}


def main() -> None:
    """Prints one `name==version` line per package, sorted."""
    version = ".".join(map(str, sys.version_info[:2]))
    print(f"# Made by scripts/lock.sh from a working environment (Linux x86-64, Python {version}); needs --no-deps.")
    print(f"# torch {importlib.metadata.version('torch')} comes first and is not in this list: see scripts/setup.sh.")
    for name in sorted(closure("espalier-rl", EXTRAS) - LEFT_OUT):
        print(f"{name}=={importlib.metadata.version(name)}")


if __name__ == "__main__":
    main()
