"""The tiny model: a Qwen2 of about two million random weights, with its own tokenizer and chat template.

Attention has heads of 32 values because vLLM's CPU attention takes 32, 64, 80, … only.
"""

from collections.abc import Iterable, Sequence
from typing import Any

VOCABULARY = 2048
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
END, PAD = "<|end|>", "<|pad|>"
TAGS = (
    *("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>"),
    *("<information>", "</information>", "<last/>"),
)
"""Of the question answering environment: one token each. Not special tokens: they must survive
`decode(skip_special_tokens=True)`."""
GAME_TAGS = ("<think>", "</think>", "<act>", "</act>", "<obs>", "</obs>")
"""The same of text adventures."""
NODE_TAGS = (
    *('{"', '":"', '","', '"}', '":{"', '"},"', "<output>", "</output>", "<input>", "</input>"),
    *(f"{number:02d}" for number in range(100)),
)
"""Of decision nodes, typed and flat. With the signs between names and values, JSON is half as many tokens; with digits
two by two, a number of four is copied in half the steps and with half the chances to lose the place."""
PIECES = r" ?\p{L}[\p{L}\p{M}]*| ?\p{N}| ?[^\s\p{L}\p{N}]|\s"
"""Words, single digits and single signs, each with the space before it: a name is cut into the same tokens everywhere
where a space stands before it, whatever follows."""
CHAT = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|> ' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""A space follows the role, so that the first word of a message is like any other."""
EMBEDDING_STD = 0.04
WRITE_SCALE = 0.1
"""Of a head's output against what it reads: one head changes the residual stream about as much as an embedding."""
LOOK_BACK = (1, 1, 2)
"""Distance that each of the first heads of the first layer looks back."""
LOOK_STRENGTH = 4.0
"""Puts about 80 % of a head's attention on that place."""


def tags_in(text: str) -> tuple[str, ...]:
    """The tags that agent steps of this kind need: of text adventures for a command, of decision nodes for JSON."""
    if text.startswith(("{", "<output>")):
        return NODE_TAGS
    return GAME_TAGS if "<act>" in text else TAGS


def tiny_tokenizer(texts: Iterable[str], tags: Sequence[str] = TAGS) -> Any:
    """A byte-level BPE of at most 2,048 tokens learned from `texts`; `decode(encode(x)) == x` for any text."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, END, *ROLES]
    tokenizer: Any = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(special) - len(tags),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        # Never produced by a byte-level BPE; without it, transformers' Qwen2 tokenizer adds one beyond the vocabulary.
        unk_token=PAD,
        chat_template=CHAT,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def tiny_model(tokenizer: Any, *, hidden: int = 192, layers: int = 4) -> Any:
    """A Qwen2 with float32 weights from `prepare_for_copying`; seed torch first."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
    prepare_for_copying(model)
    return model


def prepare_for_copying(model: Any) -> None:
    """Random weights from which copying is learned in fewer steps (the idea: Trockman and Kolter, arXiv 2305.09828).

    To copy is to find an earlier place whose previous token is the current one, and to write the token there. So in
    the first layer some heads look at the last or last but one place (by their biases, under rotary positions); in
    later layers queries and keys are equal, so like looks at like; and everywhere a head writes what it reads.
    """
    import torch

    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0, EMBEDDING_STD)
        for number, layer in enumerate(model.model.layers):
            attention, size = layer.self_attn, model.config.hidden_size
            values = torch.nn.init.orthogonal_(torch.empty(size, size))
            attention.v_proj.weight.copy_(values)
            attention.o_proj.weight.copy_(WRITE_SCALE * values.T)
            if number == 0:
                for head, distance in enumerate(LOOK_BACK[: attention.q_proj.out_features // attention.head_dim]):
                    _look_back(attention, head, distance, model.config.rope_parameters["rope_theta"])
            else:
                attention.q_proj.weight.normal_(0, size**-0.5)
                attention.k_proj.weight.copy_(attention.q_proj.weight)


def _look_back(attention: Any, head: int, distance: int, theta: float) -> None:
    """Turns the query's bias back by `distance` positions, so that its product with the key's bias peaks there."""
    import torch

    half = attention.head_dim // 2
    angles = -distance * theta ** (-torch.arange(half) / half)
    rows = slice(head * 2 * half, (head + 1) * 2 * half)
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight[rows] *= 0.1
    attention.q_proj.bias[rows] = LOOK_STRENGTH * torch.cat([angles.cos(), angles.sin()])
    attention.k_proj.bias[rows] = LOOK_STRENGTH * torch.cat([torch.ones(half), torch.zeros(half)])


def as_loaded(tokenizer: Any, model: Any) -> Any:
    """The tokenizer as whoever opens the saved folder gets it: by the kind of model, `AutoTokenizer` has ideas of its
    own of how text is split (Qwen2 takes no space with a digit), and a model must be trained with the same ones.
    """
    from tempfile import TemporaryDirectory

    from transformers import AutoTokenizer

    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        model.config.save_pretrained(folder)
        return AutoTokenizer.from_pretrained(folder)
