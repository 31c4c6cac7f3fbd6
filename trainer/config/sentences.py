"""What a user reads when a setting is wrong: one sentence per fault, naming the key and what is accepted."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from envs.masking import masked_text
from trainer.config.keys import FOLDER, PATH, all_keys, listed, without_places


class ConfigError(ValueError):
    """Settings that cannot be used. `sentences` holds one sentence per fault, in the order to print them."""

    def __init__(self, sentences: list[str]) -> None:
        self.sentences = list(dict.fromkeys(sentences))
        super().__init__("\n".join(self.sentences))


def unknown_key(key: str) -> str:
    """The sentence for a key that does not exist, with the most similar one and the keys of its section."""
    keys = all_keys()
    section = key.rpartition(".")[0]
    while section not in keys.sections:
        section = section.rpartition(".")[0]
    similar = _similar(key)
    hint = f" (did you mean {keys.written(similar)}?)" if similar else ""
    accepted = listed(sorted(keys.sections[section]), "and")
    if not section:
        return f"Unknown key {key}{hint}." if hint else f"Unknown key {key}: the top-level keys are {accepted}."
    return f"Unknown key {key}{hint}: {section} accepts {accepted}."


def _similar(key: str) -> str | None:
    keys = all_keys()
    names = [*keys.values, *(section for section in keys.sections if section)]
    same_end = [name for name in names if name.endswith(f".{key.rpartition('.')[2]}")]
    return next(iter(get_close_matches(key, same_end or names, n=1, cutoff=0.0 if same_end else 0.7)), None)


def from_validation(error: ValidationError, settings: Mapping[str, object]) -> list[str]:
    """One sentence per fault that pydantic found in `settings`."""
    details = error.errors(include_url=False)
    return [sentence for detail in details for sentence in _from_detail(detail, settings)]


def empty_paths(settings: Mapping[str, object], section: str = "") -> Iterator[str]:
    """One sentence per path without text, which pydantic would take for the current folder."""
    for last, value in settings.items():
        key = f"{section}.{last}" if section else last
        if isinstance(value, Mapping):
            yield from empty_paths(value, key)
        elif value == "" and key in all_keys().values and all_keys().values[key].accepted in (PATH, FOLDER):
            yield f"{key} is empty: {_must_be(key)}."


def checks_between_keys(error: ValidationError) -> bool:
    """Whether every fault is a disagreement between keys that are each fine alone."""
    return all(detail["type"] == "value_error" for detail in error.errors(include_url=False))


def _from_detail(detail: ErrorDetails, settings: Mapping[str, object]) -> Iterator[str]:
    key, value = _key(detail["loc"], settings), detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            yield _stray_key(key, settings)
        case "missing":
            yield f"{key} has no value: {_must_be(key)}."
        case "union_tag_invalid" | "union_tag_not_found" if isinstance(value, Mapping):
            tag = f"{key}.{all_keys().tags[key]}"
            yield f"{tag}={_shown(value.get(all_keys().tags[key]))} is not accepted: {_must_be(tag)}."
        case "value_error":
            for line in str(detail["ctx"]["error"]).splitlines():
                sentence = line if line.endswith(".") else f"{line}."
                yield sentence if key in sentence else f"{key}: {sentence}"
        case "finite_number":
            yield f"{key}={_shown(value)} is not accepted: {_must_be(key)}, and finite."
        case _ if value == "":
            yield f"{key} is empty: {_must_be(key)}."
        case _:
            yield f"{key}={_shown(value)} is not accepted: {_must_be(key)}."


def _stray_key(key: str, settings: Mapping[str, object]) -> str:
    """A key that exists, but not in the kind of section chosen, or that does not exist at all."""
    keys, section = all_keys(), key.rpartition(".")[0]
    while section and section not in keys.tags:
        section = section.rpartition(".")[0]
    if not section or not keys.is_known(key):
        return unknown_key(key)
    tag = f"{section}.{keys.tags[section]}"
    value: object = settings
    for part in tag.split("."):
        value = value[part] if isinstance(value, Mapping) else None
    return f"{key} is not accepted with {tag}={_shown(value)}."


def _key(location: tuple[int | str, ...], settings: Mapping[str, object]) -> str:
    """The key of an error's location, e.g. `env.retriever.corpus` for `("env", "retriever", "local", "corpus")`."""
    tags, name = all_keys().tags, ""
    value: object = settings
    for part in location:
        if isinstance(value, Mapping) and name in tags and part == value.get(tags[name]):
            continue  # pydantic puts the chosen kind between a section and its keys
        if isinstance(value, Mapping):
            value = value.get(str(part))
        else:
            value = value[part] if isinstance(value, list) and isinstance(part, int) and part < len(value) else None
        name = f"{name}[{part}]" if isinstance(part, int) else f"{name}.{part}".lstrip(".")
    return name


def _must_be(key: str) -> str:
    keys, name = all_keys(), without_places(key)
    if name in keys.sections:
        is_list = name in keys.lists and not key.endswith("]")
        what = "a list of sections" if is_list else "a section"
        or_null = ", or null" * (name in keys.wholes and name not in keys.lists)
        return f"it must be {what} with the keys {listed(sorted(keys.sections[name]), 'and')}{or_null}"
    return f"it must be {keys.values[name].accepted}" if name in keys.values else "see docs/configuration.md"


def _shown(value: object) -> str:
    """A value as it is written in YAML, shortened; text in quotes, so that '8' is told from 8."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else masked_text(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
