"""Loss weights of decision nodes: decay 0.92 / 0.782 / 0.6647, and routing shares for given KLs, on paper."""

import pytest
from typed_forests import FAN, LINE, decision

from trainer.decisions.routing import depth_weight, factors, routing_shares, shares


def test_decay_with_depth() -> None:
    found = [depth_weight(depth, decision()) for depth in range(3)]
    assert found == pytest.approx([0.92, 0.782, 0.6647])
    assert depth_weight(2, decision(decay_root=1.0, decay=0.5)) == 0.25


@pytest.mark.parametrize(
    ("weights", "children", "kls", "expected"),
    [
        ((1, 1), (0, 0), (0.0, 0.0), (0.5, 0.5)),
        ((1, 1), (0, 0), (0.0, 0.5), (2 / 3, 1 / 3)),
        ((1, 1), (3, 0), (0.0, 0.0), (0.75, 0.25)),
        ((1, 1), (1, 0), (0.0, 0.0), (0.5, 0.5)),
        ((2, 1, 1), (0, 0, 2), (0.5, 0.0, 0.75), (0.4, 0.4, 0.2)),
        ((1, 1), (0, 0), (0.2, 7.0), (1.0, 0.0)),
        ((1, 3), (0, 0), (1.0, 2.0), (0.5, 0.5)),
        ((0, 0), (0, 0), (0.0, 0.0), (0.5, 0.5)),
        ((1, 1), (0, 0), (-0.5, 0.0), (0.5, 0.5)),
    ],
)
def test_shares(weights: tuple, children: tuple, kls: tuple, expected: tuple) -> None:
    """A leaf counts as one child, a KL above 1 gives nothing and one below 0 no more than 0; equal where all is 0."""
    assert shares(weights, children, kls) == pytest.approx(list(expected))


def test_a_sibling_whose_kl_rises_gets_less_and_the_others_more() -> None:
    wide = {"root": None, "a": "root", "b": "root", "c": "root"}
    before = routing_shares(decision(wide), {"a": 0.1, "b": 0.1, "c": 0.1})
    after = routing_shares(decision(wide), {"a": 0.1, "b": 0.4, "c": 0.1})
    assert [before[name] for name in "abc"] == pytest.approx([1 / 3] * 3)
    assert [after[name] for name in "abc"] == pytest.approx([0.9 / 2.4, 0.6 / 2.4, 0.9 / 2.4])
    assert after["root"] == 1.0, "alone in its level"


def test_equal_shares_leave_the_weight_of_the_depth() -> None:
    plain = decision(FAN, routing=False)
    found = factors(plain, routing_shares(plain, {"lookup": 0.9}))
    assert found == pytest.approx({"intent": 0.92, "lookup": 0.782, "shipping": 0.782, "aftersales": 0.6647})


def test_a_factor_is_the_decay_times_the_share_times_the_nodes_of_the_level() -> None:
    """lookup has one child, so it counts like shipping; weight 3 against 1 at KL 0.5 and 0: 1.5 to 1."""
    routed = decision(FAN, {"lookup": {"weight": 3.0}})
    found = factors(routed, routing_shares(routed, {"lookup": 0.5}))
    assert found["lookup"] == pytest.approx(0.782 * 0.6 * 2)
    assert found["shipping"] == pytest.approx(0.782 * 0.4 * 2)


def test_frozen_nodes_take_part_in_nothing() -> None:
    frozen = decision(FAN, {"lookup": {"freeze": True}, "intent": {"adapter": False}})
    found = factors(frozen, routing_shares(frozen, {}))
    assert found == pytest.approx({"shipping": 0.782, "aftersales": 0.6647}), "the rest of the level, not half of it"


def test_a_trained_backbone_trains_every_node() -> None:
    whole = decision(LINE, {"policy": {"adapter": False}}, backbone="trained")
    assert set(routing_shares(whole, {})) == set(LINE)
