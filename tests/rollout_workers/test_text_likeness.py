"""Texts compared by a sentence encoder: a tiny random one, and one whose vectors are known on paper."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from rollout_workers.text_likeness import text_likeness

WORDS = ("[UNK]", "sent", "it", "was", "refused", "never")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=8, initializer_range=0.5, **sizes)
    BertModel(config).save_pretrained(folder)
    words = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    return folder


def test_likeness_is_the_cosine_of_mean_vectors_brought_to_0_and_1(encoder):
    likeness, model = text_likeness(encoder), BertModel.from_pretrained(encoder).eval()
    with torch.no_grad():
        a, b = (model(torch.tensor([ids])).last_hidden_state[0].mean(dim=0) for ids in ([2, 3, 1], [4, 5]))
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=0).item()
    assert likeness("it was sent", "refused never") == pytest.approx((1 + cosine) / 2, abs=1e-6)
    assert likeness("refused never", "it was sent") == pytest.approx((1 + cosine) / 2, abs=1e-6)
    assert 0 < likeness("it was sent", "it was refused") < 1


def test_equal_empty_and_long_texts(encoder):
    likeness = text_likeness(encoder)
    assert likeness("it was sent", "it was sent") == likeness("", "") == 1.0
    assert likeness("", "sent") == 0.5
    assert likeness("it " * 8, "it " * 100) == pytest.approx(1.0), "cut at the encoder's 8 positions"


def test_an_encoder_is_loaded_once_per_process(encoder):
    assert text_likeness(encoder) is text_likeness(encoder)


def test_a_folder_without_an_encoder_is_one_sentence(tmp_path):
    with pytest.raises(
        ValueError, match=r"nowhere is not a folder; accepted: the folder of a Hugging Face text encoder"
    ):
        text_likeness(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"cannot be loaded as a text encoder: ") as raised:
        text_likeness(tmp_path)
    assert "\n" not in str(raised.value)
