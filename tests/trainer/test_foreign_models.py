"""A model folder from elsewhere: its code does not run unasked, and what is exported can be read by those who may."""

import json
import os
import pickle
import stat
from pathlib import Path

import pytest
import torch
from micro_models import micro_qwen2, save_micro
from transformers import AutoConfig, AutoTokenizer

from trainer.compose import compose
from trainer.pretrained import load_model, write_folder

CODE = """
from pathlib import Path
Path(__file__).with_name("it-ran").write_text("")
from transformers import PretrainedConfig
class Evil(PretrainedConfig):
    model_type = "evil"
"""


def config(model: Path, *more: str):
    return compose([f"model.path={model}", "name=r", *more])


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A model folder with code of its own for everything."""
    (tmp_path / "evil.py").write_text(CODE)
    names = {
        "AutoConfig": "evil.Evil",
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": ["evil.Evil", "evil.Evil"],
    }
    settings = {"model_type": "evil", "architectures": ["EvilForCausalLM"], "auto_map": names}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Evil", "auto_map": names}))
    return tmp_path


def test_code_of_a_model_does_not_run(evil: Path) -> None:
    settings = config(evil)
    assert settings.model.trust_remote_code is False
    remote = {"trust_remote_code": settings.model.trust_remote_code}
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_model(settings, train=True)
    for auto in (AutoTokenizer, AutoConfig):
        with pytest.raises(ValueError, match="trust_remote_code"):
            auto.from_pretrained(settings.model.path, **remote)
    assert not (evil / "it-ran").exists()


class Evil:
    """Runs when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_a_pickle_for_weights_is_not_unpickled(tmp_path: Path) -> None:
    save_micro(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Evil(tmp_path / "it-ran")}, tmp_path / "pytorch_model.bin")
    with pytest.raises((pickle.UnpicklingError, ValueError, OSError), match=r"(?i)weights.only|pickle"):
        load_model(config(tmp_path), train=True)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_an_export_is_readable_for_those_whom_the_umask_lets(
    model: Path, tmp_path: Path, umask: int, mode: int
) -> None:
    lm = micro_qwen2()
    earlier = os.umask(umask)
    try:
        write_folder(lm, dict(lm.state_dict()), config(model), tmp_path / "export")
    finally:
        os.umask(earlier)
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "export").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(files)
    assert set(files.values()) == {mode}
