"""The manifest of a checkpoint folder: which files it has, how large they are and what is in them.

A checkpoint is written under another name, `<name>.part`: first the ranks' files, each with a receipt, then the run's
own state, at last `manifest.json`; then the folder gets its name. So a named folder that has no manifest, or one that
its files do not match, was damaged afterwards. Everything is flushed to the disk before the next part begins.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from envs.types import Json

MANIFEST = "manifest.json"
FORMAT = 2
"""Number of the layout of checkpoint folders; others are refused."""
RECEIPT = ".receipt"
"""Suffix of the small file that a rank leaves beside its own as soon as that is on the disk."""
READ_BYTES = 1 << 22


class Damaged(ValueError):
    """A checkpoint that cannot be used; the message is a clause such as `"run-1f.json is missing"`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """What is known of a file's content."""

    bytes: int
    blake2b: str
    """32 hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`."""

    step: int
    run: str
    """Name of the file with the state of the run, e.g. `"run-5d0c92.json"`."""
    files: dict[str, FileSum]
    """Every file of the folder but the manifest."""


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileSum:
    """Writes `chunks` one after the other and waits until they are on the disk. Raises OSError."""
    digest, size = hashlib.blake2b(digest_size=16), 0
    with path.open("wb") as file:
        for chunk in chunks:
            size += file.write(chunk)
            digest.update(chunk)
        file.flush()
        os.fsync(file.fileno())
    return FileSum(bytes=size, blake2b=digest.hexdigest())


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def leave_receipt(folder: Path, name: str, total: FileSum) -> None:
    """Tells whoever looks into `folder` that its file `name` is on the disk."""
    part = folder / f"{name}{RECEIPT}.part"
    part.write_text(json.dumps(asdict(total)), encoding="utf-8")
    part.replace(folder / f"{name}{RECEIPT}")


def receipts(folder: Path) -> dict[str, FileSum]:
    """The files whose receipts lie in `folder`, with their sums."""
    found = sorted(folder.glob(f"*{RECEIPT}"))
    return {file.name.removesuffix(RECEIPT): FileSum(**json.loads(file.read_bytes())) for file in found}


def seal(folder: Path, step: int, state: Mapping[str, Json], files: Mapping[str, FileSum]) -> Manifest:
    """Writes the state of the run and then the manifest over it and `files`; receipts go.

    On a folder that has a manifest already this replaces the state in one moment: until then the old one holds.
    """
    text = (json.dumps(state, indent=1) + "\n").encode()
    name = f"run-{hashlib.blake2b(text, digest_size=3).hexdigest()}.json"
    manifest = Manifest(step=step, run=name, files={**files, name: write_file(folder / name, [text])})
    content = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1) + "\n"
    part = folder / f"{MANIFEST}.part"
    write_file(part, [content.encode()])
    for file in [*folder.glob(f"*{RECEIPT}")]:
        file.unlink()
    part.replace(folder / MANIFEST)
    for file in [file for file in folder.glob("run-*.json") if file.name != name]:
        file.unlink()
    sync_folder(folder)
    return manifest


def read(folder: Path) -> Manifest:
    """The manifest of a folder. Raises Damaged."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
        if found["format"] != FORMAT:
            raise Damaged(f"{MANIFEST} is of format {found['format']!r}, and this version reads format {FORMAT}")
        files = {str(name): FileSum(**total) for name, total in found["files"].items()}
        manifest = Manifest(step=int(found["step"]), run=str(found["run"]), files=files)
    except FileNotFoundError:
        raise Damaged(f"it has no {MANIFEST}") from None
    except OSError as error:
        raise Damaged(f"{MANIFEST} cannot be read ({error.strerror or error})") from None
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"{MANIFEST} is cut off or damaged") from None
    if manifest.run not in files or any(Path(name).name != name for name in files):
        raise Damaged(f"{MANIFEST} is cut off or damaged")
    return manifest


def check(folder: Path, *, checksums: bool = True) -> Manifest:
    """The manifest of a folder whose files are as it says. Raises Damaged naming the first file that is not.

    Without `checksums` only the sizes are compared, which reads nothing else.
    """
    manifest = read(folder)
    for name, total in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except FileNotFoundError:
            raise Damaged(f"{name} is missing") from None
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror or error})") from None
        if size != total.bytes:
            raise Damaged(f"{name} has {size:,} bytes and not {total.bytes:,}")
    if checksums:
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda item: _compare(folder, *item), manifest.files.items()))
    return manifest


def run_state(folder: Path, manifest: Manifest) -> dict[str, Json]:
    """The state of the run as `seal` was given it. Raises Damaged."""
    try:
        found = json.loads((folder / manifest.run).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{manifest.run} cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise Damaged(f"{manifest.run} is damaged")
    return found


def _compare(folder: Path, name: str, total: FileSum) -> None:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with (folder / name).open("rb") as file:
            while chunk := file.read(READ_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise Damaged(f"{name} cannot be read ({error.strerror or error})") from None
    if digest.hexdigest() != total.blake2b:
        raise Damaged(f"the content of {name} has changed since it was written (checksum)")
