"""The contract of one node: the prompt made of its instruction and input, and its answer read once and checked.

A value is any JSON. Its text is always the compact one of `compact`, so that equal values have equal prompts.
"""

import json
import re
from typing import Any

from envs.actions import neutralise
from envs.decisions.schemas import checker
from envs.decisions.settings import NodeSettings
from envs.types import Json, Message

END_MARK = re.compile(r"\s*(<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\])?\s*\Z")
"""What may follow an answer: the text of an end-of-sequence token such as `<|im_end|>` or `[EOS]`, and white space."""
_DECODER = json.JSONDecoder(parse_constant=lambda name: _refuse(name))


class ContractError(Exception):
    """A node broke its contract under `decision.contracts: strict`: one sentence with node, field and sample.

    It ends the run: `BranchRunner` lets it through, unlike whatever else an environment raises.
    """


class Contract:
    """What one node takes and gives."""

    def __init__(self, node: NodeSettings) -> None:
        self.node = node
        self.schema = compact(node.output_schema)
        """Text of the output schema."""
        self.input_fault = checker(node.input_schema, "input")
        self._output_fault = checker(node.output_schema, "output")

    def text(self, value: Json) -> str:
        """Instruction and input as one text, without tags or special tokens that the input may hold."""
        return f"{self.node.instruction}\n{neutralise(compact(value))}"

    def messages(self, value: Json) -> tuple[Message, ...]:
        """The same as a chat prompt."""
        return (Message(role="user", content=self.text(value)),)

    def read(self, text: str) -> tuple[dict[str, Any], str]:
        """(output, why it is not valid); the output is empty unless the second one is."""
        value, fault = parse(text)
        fault = fault or self._output_fault(value)
        return (value, "") if isinstance(value, dict) and not fault else ({}, fault)


def compact(value: Any) -> str:
    """JSON text without white space, e.g. `{"intent":"refund"}`. Raises ValueError or TypeError for what is no JSON."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text.encode("utf-8")  # half a surrogate pair is no text
    return text


def parse(text: str) -> tuple[Json, str]:
    """(value, why there is none) of an answer, which is one JSON value and perhaps an end-of-sequence mark."""
    text = text.lstrip()
    try:
        value, end = _DECODER.raw_decode(text)
        compact(value)
    except RecursionError:
        return None, "output: nested too deeply"
    except UnicodeEncodeError:
        return None, "output: holds half a surrogate pair, which is no text"
    except ValueError as error:
        return None, f"output: not JSON ({error}): {_short(text)!r}"
    if not END_MARK.match(text, end):
        return None, f"output: more follows the JSON: {_short(text[end:])!r}"
    return value, ""


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
