"""Command `python -m trainer.config_docs`: writes docs/configuration.md from the typed settings."""

import json
import sys
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from trainer.compose import CONFIG_DIR, compose_settings
from trainer.config.keys import Key, all_keys

PAGE = CONFIG_DIR.parent / "docs" / "configuration.md"

_HEAD = """\
# Configuration

Written by `python -m trainer.config_docs`; change the sections in `trainer/config/`, `envs/settings.py`
and `envs/decisions/settings.py` instead.

`python -m trainer.main` composes the files under `conf/` with [Hydra](https://hydra.cc), applies what stands on the
command line, and checks the result: an unknown key, a wrong value or two settings that disagree end the command with
one sentence each and exit code 2, before anything starts.

- Set a key: `tree.roots=4`. `null` is no value; a list is written `'learner.betas=[0.9,0.95]'`, with the quotes.
- Choose an option of a group: `tree=chain`, `experiment=quickstart`. Options are the files of `conf/<group>/`.
- See what a command line gives: `--cfg job`. See what it would run: `dry_run=true`.
- Use a configuration folder of your own: `--config-dir FOLDER`.

Relative paths count from the folder in which the command runs. The defaults below are those of a command line without
overrides; options of groups set others.
"""


def page() -> str:
    """The text of docs/configuration.md."""
    return "\n".join([_HEAD, "## Groups", "", *_groups(), "", *_sections()])


def _groups() -> Iterator[str]:
    yield "| group | options |"
    yield "|---|---|"
    for folder in sorted(path for path in CONFIG_DIR.glob("*") if path.is_dir()):
        options = [f"`{file.stem}`" for file in sorted(folder.glob("*.yaml"))]
        if options:
            yield f"| `{folder.name}` | {', '.join(options)} |"


def _sections() -> Iterator[str]:
    """Top-level keys first, then one table per top-level section, in the order of `RunConfig`."""
    plain = compose_settings([]).settings
    tables: dict[str, list[Key]] = {}
    for key in all_keys().rows():
        is_of_run = "." not in key.name and key.name not in all_keys().wholes
        tables.setdefault("" if is_of_run else key.name.split(".")[0], []).append(key)
    for section, keys in tables.items():
        yield f"## {section or 'The run'}"
        yield ""
        yield "| key | accepted | default | meaning |"
        yield "|---|---|---|---|"
        yield from (_row(key, plain) for key in keys)
        yield ""


def _row(key: Key, plain: DictConfig) -> str:
    value = OmegaConf.select(plain, key.name, default=key.default) if plain.get(key.name.split(".")[0]) else key.default
    unset = key.required and value is None and key.name != "name"
    plain_value = OmegaConf.to_object(value) if OmegaConf.is_config(value) else value
    default = "required" if unset else f"`{json.dumps(plain_value)}`"
    cells = [f"`{all_keys().written(key.name)}`", key.accepted, default, " ".join(key.meaning.split())]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> int:
    """Writes the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"Wrote {PAGE}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
