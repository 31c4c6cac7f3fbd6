"""The environment of every test: no hub, no W&B server, nobody else's cluster, one thread per process.

Set here as well as in scripts/test.sh, so that a bare `pytest` behaves the same.
"""

import os
import secrets
import sys
from pathlib import Path

import pytest

for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "WANDB_API_KEY"):
    os.environ.pop(name, None)

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a call of Ray without Ray is a mistake, and must not start one
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without a mode, Ray would write a token into the user's home, and later clusters of that user would ask for it.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

# DeepSpeed finds ninja, and tests find `ray`, beside the interpreter even when the environment is not activated.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


@pytest.fixture(scope="session", autouse=True)
def quickstart_data(request: pytest.FixtureRequest) -> None:
    """The quickstart's questions, which the real runs of the slow tests read: a new checkout has none."""
    if any(item.get_closest_marker("slow") for item in request.session.items):
        from envs.prepare import main  # after the environment above

        assert main(["--out", str(Path(__file__).parent.parent / "data" / "quickstart")]) == 0
