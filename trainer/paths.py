"""Files and folders: questions about paths that a user wrote, and who may read what is written.

The answer to a question is no where `pathlib` raises (a name too long, no permission).
"""

import shutil
from pathlib import Path


def is_file(path: Path | str) -> bool:
    """Whether there is a file that this user can look at."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def is_folder(path: Path | str) -> bool:
    """Whether there is a folder that this user can look at."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


def open_weights(folder: Path) -> None:
    """Gives the safetensors files of a model folder the permissions of its config.json, which follow the umask.

    The library that writes them lets only their owner read them, whatever the umask says.
    """
    for file in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", file)
