"""Declarations of decision nodes: their order and shape, and a sentence for each thing that can be wrong with one."""

import pytest
from declared import declare, node, schema
from pydantic import ValidationError

from envs.decisions.tree import Declared

TEXT = {"type": "string"}


def problems(*nodes, **more):
    with pytest.raises(ValidationError) as raised:
        declare(*nodes, **more)
    return str(raised.value.errors()[0]["ctx"]["error"]).splitlines()


def test_a_tree_knows_order_depths_and_who_is_trained():
    frozen = {"adapter": {"freeze": True}}
    tree = Declared(declare(node("a"), node("b", "a", **frozen), node("c", "b", adapter=None), node("d", "a")))
    assert tree.order == ("a", "b", "c", "d")
    assert (tree.root, tree.children("a"), tree.children("d")) == ("a", ("b", "d"), ())
    assert [tree.depth(name) for name in tree.order] == [0, 1, 2, 1]
    assert [tree.is_trained(name) for name in tree.order] == [True, False, False, True]
    assert [tree.branch(name) for name in tree.order] == [None, "b", "b", "d"]


def test_with_a_trained_backbone_every_node_is_trained():
    tree = Declared(declare(node("a"), node("b", "a", adapter=None), backbone="trained"))
    assert all(map(tree.is_trained, tree.order))


def test_the_order_is_that_of_the_declaration_even_across_branches():
    tree = Declared(declare(node("a"), node("b", "a"), node("c", "a"), node("d", "b", reads=["c"])))
    assert tree.order == ("a", "b", "c", "d")
    assert tree.needs("d") == ("b", "c")


SHAPES = {
    "two roots": (
        [node("a"), node("b")],
        "decision.nodes: node 'b' is a second root beside 'a'; give it a parent.",
    ),
    "an orphan": (
        [node("a"), node("b", "z")],
        "decision.nodes: node 'b' is an orphan: its parent 'z' is not declared; declared are a, b.",
    ),
    "a cycle": (
        [node("a"), node("b", "d"), node("c", "b"), node("d", "c")],
        "decision.nodes: the parents of node 'b' form a cycle, 'b' -> 'd' -> 'c' -> 'b'.",
    ),
    "its own parent": (
        [node("a"), node("b", "b")],
        "decision.nodes: the parents of node 'b' form a cycle, 'b' -> 'b'.",
    ),
    "two parents": (
        [node("a"), node("b", "a"), node("c", "a"), node("c", "b")],
        "decision.nodes: node 'c' has two parents, 'a' and 'b'; a node has one parent, and can read other nodes.",
    ),
    "a name twice": (
        [node("a"), node("b", "a"), node("b", "a")],
        "decision.nodes: node 'b' is declared twice; give one of them another name.",
    ),
    "a name that metrics have": (
        [node("a"), node("gate", "a")],
        "decision.nodes: node 'gate' has the name of a group of metrics; give it another one.",
    ),
    "a child before its parent": (
        [node("a"), node("c", "b"), node("b", "a")],
        (
            "decision.nodes: node 'c' is declared before its parent 'b'; nodes run in the order of their declaration."
        ),
    ),
    "a read of what runs later": (
        [node("a"), node("b", "a", reads=["c"]), node("c", "a")],
        "decision.nodes: node 'b' reads 'c', which runs later; declare 'c' before it.",
    ),
    "a read of itself": (
        [node("a"), node("b", "a", reads=["b"])],
        "decision.nodes: node 'b' reads itself; it can read nodes that run before it.",
    ),
    "a read of nothing": (
        [node("a"), node("b", "a", reads=["z"])],
        "decision.nodes: node 'b' reads 'z', which is not declared; declared are a, b.",
    ),
    "a schema that is none": (
        [node("a", output_schema={"type": "object", "properties": {"x": {"type": "strnig"}}})],
        "decision.nodes: node 'a': output_schema is not valid JSON Schema (Draft 2020-12): at properties.x.type: "
        "'strnig' is not valid under any of the given schemas.",
    ),
    "an input schema that is none": (
        [node("a", input_schema={"required": "x"})],
        "decision.nodes: node 'a': input_schema is not valid JSON Schema (Draft 2020-12): at required: "
        "'x' is not of type 'array'.",
    ),
    "a reference to nowhere": (
        [node("a", input_schema={"properties": {"x": {"$ref": "#/$defs/x"}}})],
        "decision.nodes: node 'a': input_schema is not valid JSON Schema (Draft 2020-12): $ref '#/$defs/x' leads "
        "nowhere; it must stay inside the schema, e.g. #/$defs/address.",
    ),
    "an output that is no object": (
        [node("a", output_schema={"type": "string"})],
        "decision.nodes: node 'a': output_schema must have type: object, since values are merged.",
    ),
    "an output that decoding can't be held to": (
        [node("a", output_schema=schema(x={"type": "number", "multipleOf": 3}))],
        "decision.nodes: node 'a': output_schema.properties.x: multipleOf can't be guided; keywords beside type "
        "number: exclusiveMaximum, exclusiveMinimum, maximum, minimum.",
    ),
    "an input that nobody gives": (
        [node("a"), node("b", "a", input_schema={"required": ["a", "city"]})],
        "decision.nodes: node 'b': input_schema requires 'city', which neither the output of its parent 'a' nor its "
        "reads give.",
    ),
    "a read that hides a property": (
        [node("a", output_schema=schema(a=None, b=None)), node("b", "a"), node("c", "a", reads=["b"])],
        "decision.nodes: node 'c' reads 'b', and the output of its parent 'a' has a property of that name, which the "
        "read would hide.",
    ),
    "forbidden words without any": (
        [node("a", rewards={"automatic": ["forbidden_words"]})],
        "decision.nodes[0].rewards.forbidden_words of node 'a' goes with forbidden_words in "
        "decision.nodes[0].rewards.automatic: set both or neither.",
    ),
    "nobody who learns": (
        [node("a", adapter=None), node("b", "a", adapter={"freeze": True})],
        "decision.nodes: no node is trained: each has no adapter or a frozen one, and decision.backbone=frozen.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "sentence"), SHAPES.values(), ids=SHAPES)
def test_a_fault_has_one_sentence(nodes, sentence):
    assert problems(*nodes) == [sentence]


def test_without_any_root_both_faults_are_told():
    found = problems(node("a", "b"), node("b", "a"))
    assert found == [
        "decision.nodes: there is no root; exactly one node has parent: null.",
        "decision.nodes: the parents of node 'a' form a cycle, 'a' -> 'b' -> 'a'.",
    ]


def test_faults_of_the_whole():
    (found,) = problems(node("a"), gate={"record_odds": True})
    assert found == "decision.gate chooses among the children of node 'a', which has none."
    (found,) = problems(node("a"), feedback={"focus": ["z"]})
    assert found == "decision.feedback.focus names 'z', which is not declared; declared are a."
    (found,) = problems(node("a"), levels={"automatic": 0, "human": 0, "rules": 0})
    assert found == "decision.levels are all 0: at least one level must count."


def test_who_reads_what_a_gate_may_skip_accepts_null():
    def nodes(accepted):
        wanted = {"properties": {"b": accepted}, "required": ["a", "b"]}
        return node("a"), node("b", "a"), node("c", "a", reads=["b"], input_schema=wanted)

    (found,) = problems(*nodes({"type": "object"}), gate={"path": "gate.json"})
    assert found == (
        "decision.nodes: node 'c' reads 'b', which the gate may skip; its input_schema must accept null for 'b'."
    )
    declare(*nodes({"type": ["object", "null"]}), gate={"path": "gate.json"})
    declare(*nodes({"type": "object"}))


def test_what_an_action_finds_may_be_required():
    declare(node("a", act="lookup"), node("b", "a", input_schema={"required": ["a", "status"]}))


def test_an_open_output_may_have_anything():
    open_schema = {"type": "object", "properties": {"a": TEXT}, "additionalProperties": TEXT}
    declare(node("a", output_schema=open_schema), node("b", "a", input_schema={"required": ["city"]}))
