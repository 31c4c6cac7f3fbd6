"""The same learning pass under TRL's GRPOTrainer; runs in an environment of its own and imports nothing of ours.

    .venv-trl/bin/python -P scripts/bench/trl_pass.py MODEL ROWS.json

ROWS.json lists shapes; a shape is `{"name", "pack", "rows": [{"prompt", "completion", "sampled", "advantage"}]}`, with
token ids, and `sampled` 1 for tokens of the policy and 0 for observations. For every line with a shape's index on the
standard input it runs one pass, forward, loss and backward, and prints the seconds as one line. A path in place of an
index is where the gradient of the last pass is written, all parameters as one vector; then it prints the path.

The loss is `GRPOTrainer.compute_loss` itself, on inputs as its own generation prepares them. Rows are sorted by length
and a batch holds as many as fit into `pack` tokens with padding, which spares TRL most of the padding. It takes the
mean over the rows of a batch; weighted with the batch's share of the rows, that adds up to the mean over all rows.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-untyped,import-not-found,unused-ignore]
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

Batch = dict[str, torch.Tensor]


def trainer_for(model: str, folder: str) -> Any:
    """A GRPOTrainer that clips as ours does, dual clip included, and has no KL term; it never generates here."""
    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    settings = {
        "output_dir": folder,
        "use_cpu": True,
        "report_to": [],
        "beta": 0.0,
        "epsilon": 0.2,
        "delta": 3.0,
        "loss_type": "grpo",
        "per_device_train_batch_size": 8,
        "num_generations": 8,
        "gradient_checkpointing": False,
        "bf16": False,
        "disable_tqdm": True,
    }
    trainer = GRPOTrainer(
        model=lm,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(**settings),
        train_dataset=Dataset.from_list([{"prompt": "x"}] * 8),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1  # set by train(), which would generate
    return trainer


def batches(rows: list[dict[str, Any]], capacity: int) -> list[Batch]:
    """Rows of like length together; prompts padded on the left, completions on the right, as TRL pads them."""
    longest_first = sorted(rows, key=lambda row: -len(row["prompt"]) - len(row["completion"]))
    groups: list[list[dict[str, Any]]] = [[]]
    for row in longest_first:
        trial = [*groups[-1], row]
        if (
            groups[-1]
            and len(trial) * sum(max(len(one[key]) for one in trial) for key in ("prompt", "completion")) > capacity
        ):
            groups.append([])
        groups[-1].append(row)
    return [collate(group) for group in groups]


def collate(rows: list[dict[str, Any]]) -> Batch:
    """One batch of `compute_loss`. Without stored log-probabilities TRL takes its own as the old ones: on policy."""
    prompt = max(len(row["prompt"]) for row in rows)
    completion = max(len(row["completion"]) for row in rows)

    def right(values: list[int]) -> list[int]:
        return values + [0] * (completion - len(values))

    def left(values: list[int]) -> list[int]:
        return [0] * (prompt - len(values)) + values

    return {
        "prompt_ids": torch.tensor([left(row["prompt"]) for row in rows]),
        "prompt_mask": torch.tensor([left([1] * len(row["prompt"])) for row in rows]),
        "completion_ids": torch.tensor([right(row["completion"]) for row in rows]),
        "completion_mask": torch.tensor([right([1] * len(row["completion"])) for row in rows]),
        "tool_mask": torch.tensor([right(row["sampled"]) for row in rows]),
        "advantages": torch.tensor([row["advantage"] for row in rows]),
    }


def run(trainer: Any, prepared: list[Batch]) -> float:
    """One pass over all batches; returns its seconds."""
    rows = sum(len(batch["advantages"]) for batch in prepared)
    trainer.model.zero_grad()
    started = time.perf_counter()
    for batch in prepared:
        share = len(batch["advantages"]) / rows
        trainer.accelerator.backward(trainer.compute_loss(trainer.model, batch) * share)
    return time.perf_counter() - started


def write_gradient(trainer: Any, path: str) -> None:
    """All gradients of the last pass, in the order of the model's parameters."""
    torch.save(torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]), path)


def main() -> None:
    """Prepares everything, says so, and serves line by line."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as on the other sides
    model, rows = sys.argv[1:]
    shapes = json.loads(Path(rows).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_for(model, folder)
        prepared = [batches(shape["rows"], shape["pack"]) for shape in shapes]
        print("ready", flush=True)
        for line in sys.stdin:
            wanted = line.strip()
            if wanted.isdecimal():
                print(run(trainer, prepared[int(wanted)]), flush=True)
            else:
                write_gradient(trainer, wanted)
                print(wanted, flush=True)


if __name__ == "__main__":
    main()
