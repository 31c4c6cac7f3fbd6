"""Forests of given shapes, and one learning pass over them in one layout: forward, loss and backward, no optimizer.

All between forest and gradients is the learner's own: packs of `pack_forest`, `PackedPolicy`, `pack_loss`.
"""

import random
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from envs.types import EndReason, Message, Task
from rollout_workers.types import Forest, Node, TaskGroup, Tree
from trainer.advantages import advantages
from trainer.config import LearnerConfig, LossConfig
from trainer.forward import PackedPolicy, to_tensors
from trainer.layout import Layout, chosen_layout
from trainer.loss import pack_loss
from trainer.loss_inputs import loss_inputs
from trainer.packing import pack_forest
from trainer.types import PackedForest, TreePack

LOSS = LossConfig(kl_coef=0.0)
"""Clip and dual clip as by default, no reference model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the forest of one optimizer step looks like. Steps and observations vary in length by half of their mean."""

    name: str
    tasks: int
    roots: int
    nodes_per_round: int
    rounds: int = 1
    turns: int = 4
    prompt: int = 100
    """Tokens of a prompt."""
    step: int = 40
    """Sampled tokens of an agent step, on average."""
    observation: int = 60
    """Tokens of an observation, on average."""
    pack: int = 2048
    """learner.max_tokens_per_pack, of the tree layout and of the flat one."""


SHAPES = (
    Shape(name="(2,2,1), 4 turns", tasks=3, roots=2, nodes_per_round=2),
    Shape(name="(2,2,1), 10 turns", tasks=1, roots=2, nodes_per_round=2, turns=10, pack=4096),
    Shape(name="wide (4,8,1), 4 turns", tasks=1, roots=4, nodes_per_round=8),
    Shape(name="large (2,6,1), 10 turns", tasks=1, roots=2, nodes_per_round=6, turns=10, observation=80, pack=8192),
)
"""The last one is one pack of over 4,000 unique tokens."""


def grow(shape: Shape, vocabulary: int) -> Forest:
    """A forest of random token ids; the same for the same shape."""
    rng = random.Random(shape.name)

    def ids(mean: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(rng.randint(mean // 2, mean * 3 // 2)))

    def chain(tree: Tree, parent: int, depths: list[int]) -> None:
        while depths[parent] < shape.turns:
            last = depths[parent] == shape.turns - 1
            sampled = ids(shape.step)
            node = Node(
                parent=parent,
                token_ids=sampled,
                logprobs=(0.0,) * len(sampled),
                versions=(0,) * len(sampled),
                observation_ids=() if last else ids(shape.observation),
                end=EndReason.ANSWERED if last else None,
                reward=rng.random() if last else None,
            )
            tree.nodes.append(node)
            depths.append(depths[parent] + 1)
            parent = len(depths) - 1

    def tree(task: str, index: int, prompt: tuple[int, ...]) -> Tree:
        grown = Tree(task_id=task, index=index, nodes=[Node(parent=-1, observation_ids=prompt)])
        depths = [0]
        chain(grown, 0, depths)
        for _ in range(shape.rounds):
            open_nodes = [i for i, depth in enumerate(depths) if depth < shape.turns]
            for parent in rng.choices(open_nodes, k=shape.nodes_per_round):
                chain(grown, parent, depths)
        return grown

    groups = []
    for number in range(shape.tasks):
        prompt = tuple(rng.randrange(vocabulary) for _ in range(shape.prompt))
        task = Task(id=f"t{number}", prompt=(Message(role="user", content="?"),), truth=("x",))
        groups.append(TaskGroup(task=task, trees=tuple(tree(task.id, i, prompt) for i in range(shape.roots))))
    return groups


class Pass:
    """A model and the packs of one forest in one layout."""

    def __init__(self, model: Path, shape: Shape, layout: str) -> None:
        lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
        learner = LearnerConfig.model_validate({"layout": layout, "max_tokens_per_pack": shape.pack})
        forest = grow(shape, lm.config.vocab_size)
        self.layout: Layout = chosen_layout(learner)
        credit = [advantages(group) for group in forest]
        self.packed: PackedForest = pack_forest(forest, credit, LOSS, learner, lm.config.hidden_size)
        self._policy = PackedPolicy(lm, 1.0, self.layout)
        self._packs: Sequence[TreePack] = self.packed.mini_batches[0][0]
        with torch.no_grad():  # on policy: what the model itself gives the tokens
            for pack in self._packs:
                pack.old_logprobs[pack.scored] = self._scores(pack)[0].numpy()

    def run(self) -> float:
        """One pass; returns its seconds. Gradients start at zero, as after an optimizer step."""
        self._policy.zero_grad()
        started = time.perf_counter()
        for pack in self._packs:
            scores = self._scores(pack)
            loss = pack_loss(*scores, None, loss_inputs(pack, torch.device("cpu")), LOSS).loss
            loss.backward()  # type: ignore[no-untyped-call]
        return time.perf_counter() - started

    def work(self) -> float:
        """Floating-point operations of a forward pass, of which a backward pass takes the same multiple in any layout.

        2 per weight of the layers' matrices and token; 4 per attention pair, head and dimension; 2 per weight of the
        output layer and scored token.
        """
        lm = self._policy.lm
        config = lm.config.get_text_config()
        ends = {id(lm.get_input_embeddings().weight), id(self._policy.output_layer().weight)}
        matrices = sum(p.numel() for p in lm.parameters() if p.ndim == 2 and id(p) not in ends)
        pair = 4 * config.hidden_size * config.num_hidden_layers
        output = 2 * config.hidden_size * config.vocab_size
        return float(
            sum(
                2 * matrices * pack.tokens + pair * (pack.positions + 1).sum() + output * pack.scored.sum()
                for pack in self._packs
            )
        )

    def gradient(self) -> torch.Tensor:
        """All gradients of the last pass as one vector."""
        return torch.cat([p.grad.flatten() for p in self._policy.parameters() if p.grad is not None])

    def _scores(self, pack: TreePack) -> tuple[torch.Tensor, torch.Tensor]:
        batch = to_tensors(pack, torch.device("cpu"))
        found: tuple[torch.Tensor, torch.Tensor] = self._policy(
            batch.ids_T, batch.positions_T, batch.end_T, batch.rows_R, batch.targets_R, 1
        )
        return found


def peak_bytes(model: Path, shape: Shape, layout: str) -> int:
    """Memory that a pass takes on top of model and gradients, measured in this process, which must be a fresh one.

    Most resident memory during the second pass, minus resident memory before the first one plus the gradients' size.
    """
    torch.set_num_threads(1)
    one = Pass(model, shape, layout)
    gradients = sum(p.numel() * p.element_size() for p in one._policy.parameters())
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5")  # the kernel's peak starts again at the present size
    one.run()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024 - before - gradients
