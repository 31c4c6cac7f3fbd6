"""Command: supervised training on demonstrations, before reinforcement learning starts.

`python -m trainer.warmstart --model PATH --demos FILE --out FOLDER` teaches any Hugging Face causal language model to
act in the environment's format; `--model tiny` makes the tiny model from random weights. Only the agent's own segments
are trained. The same seed, steps and thread count give the same model; `--minutes` depends on the machine's speed.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.demonstrations import Demonstration, Example, batches, encode, read_demonstrations, split_heldout
from trainer.paths import open_weights
from trainer.practice import NameMaker, lookup, renamed
from trainer.teacher_forced import imitation, padded
from trainer.tiny_model import as_loaded, tags_in, tiny_model, tiny_tokenizer

TINY = "tiny"
POOL = 2048
"""Demonstrations encoded at once; within a pool, those of similar length share a batch."""
REPORT_SECONDS = 10.0
HELDOUT = 200
"""Demonstrations to measure on, at most."""
MEASUREMENTS = 8
"""How often a run measures imitation and saves; a run that is stopped leaves its last model."""
SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of models whose logits are more than output embedding times hidden state."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to train."""

    steps: int
    """Optimizer steps. With `minutes`, an upper bound."""
    minutes: float | None
    """Wall time after which training ends; the learning rate then follows the time."""
    lr: float
    """Highest learning rate: linear warm-up over 4 % of the run, then a cosine down to 2 % of it."""
    muon_lr: float
    """Highest learning rate of Muon for the inner matrices, e.g. 0.02; 0 trains everything with AdamW."""
    batch_tokens: int
    practice: float
    """Share of practice at the start (see `trainer.practice`): this share of the demonstrations is renamed throughout,
    and this share of the batches are look-ups, falling to none at 60 % of the run."""
    seed: int


class Progress:
    """Says where training is: by steps, or by time when that ends first."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.started = time.monotonic()

    def share(self, step: int) -> float:
        """0 at the start, 1 at the end."""
        by_steps = step / self._recipe.steps
        if self._recipe.minutes is None:
            return by_steps
        return max(by_steps, (time.monotonic() - self.started) / (60 * self._recipe.minutes))

    def seconds_left(self, step: int) -> float:
        """Estimated from the mean speed so far."""
        done = self.share(step)
        return (time.monotonic() - self.started) * (1 - done) / max(done, 1e-9)


def learning_rate(share: float, highest: float) -> float:
    """At 0 % `highest`/50, at 4 % `highest`, at 100 % `highest`/50, e.g. 3e-3 -> 6e-5."""
    rising = min(1.0, share / 0.04)
    falling = 0.5 * (1 + math.cos(math.pi * max(0.0, share - 0.04) / 0.96))
    return highest * (0.02 + 0.98 * rising * falling)


class Source:
    """Yields batches for ever; what is practised depends on how far training is."""

    def __init__(self, demonstrations: Sequence[Demonstration], tokenizer: Any, recipe: Recipe) -> None:
        self._demonstrations = list(demonstrations)
        self._tokenizer = tokenizer
        self._recipe = recipe
        self._rng = random.Random(recipe.seed)
        self._names = NameMaker.from_demonstrations(demonstrations) if recipe.practice else None
        self._batches = self._endless()

    def next(self, share: float) -> list[Example]:
        """The next batch, at this share of the training."""
        lookups = self._recipe.practice * max(0.0, 1 - share / 0.6)
        if self._names and self._rng.random() < lookups:
            count = max(1, self._recipe.batch_tokens // 160)
            return [encode(lookup(self._names, self._rng), self._tokenizer) for _ in range(count)]
        return next(self._batches)

    def _endless(self) -> Iterator[list[Example]]:
        while True:
            self._rng.shuffle(self._demonstrations)
            for first in range(0, len(self._demonstrations), POOL):
                pool = [self._varied(item) for item in self._demonstrations[first : first + POOL]]
                yield from batches(
                    [encode(item, self._tokenizer) for item in pool], self._recipe.batch_tokens, self._rng
                )

    def _varied(self, item: Demonstration) -> Demonstration:
        if self._names and self._rng.random() < self._recipe.practice:
            return renamed(item, self._names, self._rng)
        return item


def loss_of(model: Any, examples: Sequence[Example], pad: int) -> tuple[Tensor, int]:
    """(mean negative log-likelihood of the trained tokens, how many). Logits are computed for those tokens only."""
    ids_BT, trained_BT = padded(examples, pad)
    predicts_BT = trained_BT[:, 1:]
    targets_N = ids_BT[:, 1:][predicts_BT]
    if any(getattr(model.config, name, None) for name in SCALED_LOGITS):
        logits_NV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1][predicts_BT]
    else:
        hidden_BTH = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        logits_NV = model.get_output_embeddings()(hidden_BTH[:, :-1][predicts_BT])
    return torch.nn.functional.cross_entropy(logits_NV.float(), targets_N), len(targets_N)


def make_optimizers(model: Any, recipe: Recipe) -> list[tuple[torch.optim.Optimizer, float]]:
    """Each optimizer with its highest learning rate: Muon for the matrices between embedding and head, AdamW else."""
    weights = dict(model.named_parameters())
    ends = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    inner = [item for item in weights.values() if item.ndim == 2 and id(item) not in ends and recipe.muon_lr]
    chosen = {id(item) for item in inner}
    outer = [item for item in weights.values() if id(item) not in chosen]
    adamw = torch.optim.AdamW(outer, lr=recipe.lr, betas=(0.9, 0.95), weight_decay=0.01)
    if not recipe.muon_lr:
        return [(adamw, recipe.lr)]
    muon = torch.optim.Muon(inner, lr=recipe.muon_lr, momentum=0.95, weight_decay=0.01)
    return [(adamw, recipe.lr), (muon, recipe.muon_lr)]


def train(model: Any, tokenizer: Any, source: Source, recipe: Recipe, measure: Callable[[], None]) -> list[float]:
    """Trains in place; returns the loss of each step. Prints a line every ten seconds, calls `measure` eight times."""
    model.train()
    pad = _pad(tokenizer)
    optimizers = make_optimizers(model, recipe)
    losses: list[float] = []
    progress, tokens = Progress(recipe), 0
    reported, measured = progress.started, 0
    while (share := progress.share(len(losses))) < 1:
        for optimizer, highest in optimizers:
            optimizer.param_groups[0]["lr"] = learning_rate(share, highest)
        batch = source.next(share)
        loss, _ = loss_of(model, batch, pad)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        tokens += sum(len(example.ids) for example in batch)
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            speed = tokens / (reported - progress.started)
            mean = sum(losses[-50:]) / len(losses[-50:])
            left = progress.seconds_left(len(losses))
            print(f"step {len(losses)} | loss {mean:.3f} | {speed:,.0f} tokens/s | {left:.0f} s left", flush=True)
        if progress.share(len(losses)) >= (measured + 1) / MEASUREMENTS:
            measured += 1
            measure()
    return losses


def load(path: str, dtype: torch.dtype, demonstrations: Sequence[Demonstration]) -> tuple[Any, Any]:
    """(model, tokenizer): made for `tiny`, else read. Raises ValueError for a path that holds no usable model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if path == TINY:
        steps = "".join(segment.text for segment in demonstrations[0].segments)
        tokenizer = tiny_tokenizer(_texts(demonstrations), tags_in(steps))
        model = tiny_model(tokenizer)
        return model, as_loaded(tokenizer, model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--model {path}: expected tiny or a Hugging Face causal language model; {reason}") from None
    if not tokenizer.chat_template:
        raise ValueError(f"--model {path}: its tokenizer has no chat template")
    return model, tokenizer


def save(model: Any, tokenizer: Any, out: Path, dtype: torch.dtype) -> None:
    """Writes a Hugging Face folder. `dtype` is that of the file; the configuration keeps the one trained in."""
    trained_in = model.dtype
    made: dict[int, Tensor] = {}  # by storage: tied weights stay one tensor, and are written once
    for tensor in (weights := model.state_dict()).values():
        made.setdefault(tensor.data_ptr(), tensor.to(dtype))
    model.save_pretrained(out, state_dict={name: made[tensor.data_ptr()] for name, tensor in weights.items()})
    model.config.dtype = trained_in
    model.config.save_pretrained(out)
    open_weights(out)
    tokenizer.save_pretrained(out)


def _texts(demonstrations: Sequence[Demonstration]) -> Iterator[str]:
    for item in demonstrations:
        yield from (" " + message.content for message in item.messages)
        yield from (segment.text for segment in item.segments)


def _pad(tokenizer: Any) -> int:
    """Any id will do where nothing is trained or attended to."""
    pad = tokenizer.pad_token_id
    return 0 if pad is None else int(pad)


def run(options: argparse.Namespace) -> None:
    """Reads, trains, measures, saves. Raises ValueError for wrong settings and files."""
    torch.manual_seed(options.seed)
    demonstrations = read_demonstrations(options.demos)
    heldout = read_demonstrations(options.heldout) if options.heldout else []
    if not heldout:
        demonstrations, heldout = split_heldout(demonstrations, 0.05, HELDOUT, random.Random(options.seed))
    heldout = heldout[:HELDOUT]
    model, tokenizer = load(options.model, DTYPES[options.dtype], demonstrations)
    recipe = _recipe(options, demonstrations, tokenizer)
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(f"{weights:,} weights, {len(demonstrations)} demonstrations, at most {recipe.steps} steps", flush=True)

    def measure() -> None:
        if heldout:
            print(imitation(model, tokenizer, heldout, _pad(tokenizer)).line(), flush=True)
        save(model, tokenizer, options.out, DTYPES[options.save_dtype or options.dtype])

    train(model, tokenizer, Source(demonstrations, tokenizer, recipe), recipe, measure)
    print(f"saved to {options.out}")


def _recipe(options: argparse.Namespace, demonstrations: Sequence[Demonstration], tokenizer: Any) -> Recipe:
    """Steps are counted from the epochs when they are not given."""
    sample = demonstrations[:200]
    mean = sum(len(encode(item, tokenizer).ids) for item in sample) / len(sample)
    steps = options.steps or math.ceil(options.epochs * len(demonstrations) * mean / options.batch_tokens)
    lr = options.lr if options.lr is not None else (3e-3 if options.model == TINY else 2e-5)
    return Recipe(
        steps=steps,
        minutes=options.minutes,
        lr=lr,
        muon_lr=options.muon_lr,
        batch_tokens=options.batch_tokens,
        practice=options.practice,
        seed=options.seed,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for a wrong setting)."""
    try:
        run(_parser().parse_args(arguments))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.warmstart", description="Imitates demonstrations.")
    parser.add_argument("--model", required=True, help="Hugging Face folder or hub id, or tiny for random weights")
    parser.add_argument("--demos", type=Path, required=True, help="JSONL file, e.g. from python -m envs.demonstrator")
    parser.add_argument(
        "--heldout", type=Path, help="demonstrations to measure on (default: 5 %% of --demos, 200 at most)"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--epochs", type=_positive(float), default=1.0, help="passes over the demonstrations (default 1)"
    )
    parser.add_argument("--steps", type=_positive(int), help="optimizer steps, instead of --epochs")
    parser.add_argument("--minutes", type=_positive(float), help="end after this time at the latest")
    parser.add_argument("--lr", type=_positive(float), help="highest learning rate (default 2e-5; tiny 3e-3)")
    parser.add_argument(
        "--batch-tokens", type=_positive(int), default=2048, help="padded tokens per step (default 2048)"
    )
    parser.add_argument(
        "--muon-lr", type=float, default=0.0, help="train matrices with Muon, e.g. 0.02 (default: AdamW)"
    )
    parser.add_argument("--practice", type=_share, default=0.0, help="share of copying practice, e.g. 0.5 for tiny")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="of the training (default float32)")
    parser.add_argument("--save-dtype", choices=sorted(DTYPES), help="of the saved file (default: --dtype)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _positive(kind: type[int] | type[float]) -> Any:
    def read(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} must be greater than 0")
        return value

    read.__name__ = kind.__name__
    return read


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
