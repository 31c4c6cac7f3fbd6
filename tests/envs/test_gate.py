"""The gate in plain Python: its arithmetic, its file, and what it refuses."""

import json
import math
import struct
from pathlib import Path

import pytest

from envs.decisions.gate import Gate, load_gate
from envs.decisions.settings import DecisionSettings, GateSettings
from envs.decisions.typed_env import TypedDecisionEnv
from envs.decisions.types import NodeReward, StepRecord
from envs.types import Message, Task

NODES = ("retrieval", "reply")
INPUTS = ("intent=ask", "intent=thank")


def small_gate(**changes: object) -> Gate:
    """Two hidden units; the first passes the odds of `ask` on, the second never fires."""
    parts = {
        "inputs": INPUTS,
        "nodes": NODES,
        "hidden_weight": ((1.0, 0.0), (-1.0, -1.0)),
        "hidden_bias": (0.0, 0.0),
        "output_weight": ((4.0, 9.0), (0.0, 9.0)),
        "output_bias": (-2.0, 1.0),
    }
    return Gate(**(parts | changes))  # type: ignore[arg-type]


def write_gate(path: Path, *, dtype: str = "F32", **changes: object) -> Path:
    """The file of `small_gate`, written by hand from the description of the format."""
    arrays = {
        "hidden.weight": ([2, 2], [1.0, 0.0, -1.0, -1.0]),
        "hidden.bias": ([2], [0.0, 0.0]),
        "output.weight": ([2, 2], [4.0, 9.0, 0.0, 9.0]),
        "output.bias": ([2], [-2.0, 1.0]),
        **changes,
    }
    header: dict[str, object] = {"__metadata__": {"inputs": json.dumps(INPUTS), "nodes": json.dumps(NODES)}}
    numbers = b""
    for name, (shape, values) in arrays.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(numbers), len(numbers) + 4 * len(values)]}
        numbers += struct.pack(f"<{len(values)}f", *values)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + numbers)
    return path


def declaration(path: Path | None, **root: object) -> DecisionSettings:
    output = {"type": "object", "properties": {"intent": {"enum": ["ask", "thank"]}}}
    nodes = [{"name": "intent", "instruction": "?", "output_schema": root or output}]
    nodes += [{"name": name, "parent": "intent", "instruction": "?", "output_schema": output} for name in NODES]
    return DecisionSettings(world="w", nodes=nodes, gate={"path": path, "threshold": 0.6})


def test_a_decision_is_the_network_on_paper() -> None:
    """ask 0.75: hidden (0.75, 0), logits 4*0.75 - 2 = 1 and 1; ask 0.25: logits -1 and 1."""
    chance = 1 / (1 + math.exp(-1))
    sure, unsure = (small_gate().decide((("intent=thank", 1 - p), ("intent=ask", p))) for p in (0.75, 0.25))
    assert [(g.node, g.probability, g.runs) for g in sure] == [("retrieval", chance, True), ("reply", chance, True)]
    assert [g.probability for g in unsure] == pytest.approx([1 - chance, chance])
    assert [g.runs for g in unsure] == [False, True]


def test_the_threshold_itself_runs() -> None:
    gate = small_gate(output_bias=(0.0, 0.0), threshold=0.5)
    assert [g.runs for g in gate.decide((("intent=ask", 0.0), ("intent=thank", 1.0)))] == [True, True]


def test_a_file_is_read_without_any_library(tmp_path: Path) -> None:
    assert Gate.from_file(write_gate(tmp_path / "g.safetensors")) == small_gate()
    gate = load_gate(declaration(write_gate(tmp_path / "g.safetensors")))
    assert gate is not None
    assert (gate.threshold, gate.weights) == (0.6, 2 * 3 + 2 * 3)
    assert load_gate(declaration(None)) is None


def test_a_gate_is_small() -> None:
    with pytest.raises(ValueError, match="at most 50,000 weights, not 60,002"):
        small_gate(
            hidden_weight=((0.0, 0.0),) * 12_000, hidden_bias=(0.0,) * 12_000,
            output_weight=((0.0,) * 12_000,) * 2,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"", "cannot be used: "),
        (b"\xff" * 40, "cannot be used: it is no safetensors file"),
        (struct.pack("<Q", 2) + b"{}", "has no inputs"),
        ({"hidden.weight": ([2, 3], [0.0] * 6)}, r"hidden.weight must have shape \(2, 2\), not \(2, 3\)"),
        ({"output.bias": ([1], [0.0])}, "output.bias must have 2 values, not 1"),
        ({"output.bias": ([2], [math.nan, 0.0])}, "output.bias holds a number that is not finite"),
        ({"output.bias": ([4], [0.0, 0.0])}, "output.bias must be a float32 matrix or vector"),
        ({"dtype": "F64"}, "hidden.weight must be a float32 matrix or vector"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, content: bytes | dict[str, object] | None, said: str) -> None:
    path = tmp_path / "g.safetensors"
    if isinstance(content, dict):
        write_gate(path, **content)  # type: ignore[arg-type]
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        Gate.from_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gate_of_another_declaration(tmp_path: Path) -> None:
    path = write_gate(tmp_path / "g.safetensors")
    other = {"type": "object", "properties": {"intent": {"enum": ["ask", "complain"]}}}
    with pytest.raises(ValueError, match=r"inputs differ from .* in intent=complain, intent=thank"):
        load_gate(declaration(path, **other))
    changed = declaration(path)
    fewer = changed.model_copy(update={"nodes": changed.nodes[:2]})
    with pytest.raises(ValueError, match="its children differ from the children of the root in reply"):
        load_gate(fewer)


class World:
    def request(self, task: Task) -> dict[str, object]:
        return {"message": "hi"}

    def score(self, values: object, task: Task) -> float:
        return 1.0


class Silent:
    def judge(self, node: str, **_: object) -> tuple[NodeReward, tuple[tuple[str, float], ...]]:
        return NodeReward(), ()


async def root_step(settings: DecisionSettings, answer: str, sure: float) -> tuple[StepRecord, str]:
    """What the root's step records, and which node runs next."""
    env = TypedDecisionEnv(settings, World(), Silent(), load_gate(settings))
    state = env.reset(Task(id="t", prompt=(Message(role="user", content="?"),), truth=("x",)))
    assert env.ask(state).alternatives == 20
    other = "thank" if answer == "ask" else "ask"
    alternatives = (
        (('{"intent":"', 0.0),),
        ((answer, math.log(sure)), (other, math.log(1 - sure))),
        (('"}', 0.0),),
    )
    state, result = await env.answer(state, f'{{"intent":"{answer}"}}', alternatives)
    assert result.record is not None
    return result.record, env.ask(state).node


async def test_a_child_below_the_threshold_does_not_run(tmp_path: Path) -> None:
    """At threshold 0.6: ask 0.1 gives the lookup sigmoid(4*0.1 - 2) = 0.168, and the reply sigmoid(1) = 0.731."""
    settings = declaration(write_gate(tmp_path / "g.safetensors"))
    record, following = await root_step(settings, "thank", 0.9)
    assert dict(record.odds) == pytest.approx({"intent=ask": 0.1, "intent=thank": 0.9})
    assert [(g.node, round(g.probability, 3), g.runs) for g in record.gating] == [
        ("retrieval", 0.168, False),
        ("reply", 0.731, True),
    ]
    assert following == "reply"
    record, following = await root_step(settings, "ask", 0.9)
    assert (following, [g.runs for g in record.gating]) == ("retrieval", [True, True])


async def test_odds_are_recorded_for_training_without_a_gate() -> None:
    settings = declaration(None).model_copy(update={"gate": GateSettings(record_odds=True)})
    record, following = await root_step(settings, "thank", 0.75)
    assert dict(record.odds) == pytest.approx({"intent=ask": 0.25, "intent=thank": 0.75})
    assert (record.gating, following) == ((), "retrieval")
