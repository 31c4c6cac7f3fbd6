"""Each decision node's loss coefficients: its own where it has them, those of the `loss` section otherwise."""

from envs.decisions.settings import DecisionSettings, NodeSettings
from trainer.config.search import LossConfig
from trainer.types import NodeCoefficients


def coefficients_of(node: NodeSettings, loss: LossConfig) -> NodeCoefficients:
    """What the loss of one node's steps is computed with."""
    own = node.coefficients
    return NodeCoefficients(
        name=node.name,
        entropy_coef=loss.entropy_coef if own.entropy_coef is None else own.entropy_coef,
        kl_coef=loss.kl_coef if own.kl_coef is None else own.kl_coef,
        clip_low=loss.clip_low if own.clip_low is None else own.clip_low,
        clip_high=loss.clip_high if own.clip_high is None else own.clip_high,
    )


def all_coefficients(decision: DecisionSettings, loss: LossConfig) -> tuple[NodeCoefficients, ...]:
    """Of every node, in the declaration's order."""
    return tuple(coefficients_of(node, loss) for node in decision.nodes)
