"""Joining a cluster: a private Ray that does not come up in time."""

import os
import socket
import subprocess
import sys

import pytest

from trainer.cluster import connect, is_start_timeout
from trainer.compose import CONFIG_DIR, compose
from trainer.config.sentences import ConfigError


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Exception("The current node timed out during startup. This could happen because some of the raylet"), True),
        (RuntimeError("Timed out waiting for file /tmp/ray/session/gcs_server_port_1"), True),
        (RuntimeError("Maybe you called ray.init twice by accident?"), False),
    ],
)
def test_only_a_ray_that_is_too_slow_is_a_fault_of_the_cluster(error, expected):
    assert is_start_timeout(error) is expected


def test_a_ray_address_where_nobody_listens_is_one_sentence_at_once(monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(ConfigError, match="No Ray cluster answers at RAY_ADDRESS=127"):
            connect(compose(["experiment=quickstart", "cluster=any"]))


@pytest.mark.slow
def test_a_private_ray_that_does_not_start_in_time_is_one_sentence(tmp_path):
    script = (
        "from trainer.cluster import connect\nfrom trainer.compose import compose\n"
        "connect(compose(['experiment=quickstart', 'cluster=local']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(CONFIG_DIR.parent), "RAY_gcs_server_port_wait_time_s": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "trainer.config.sentences.ConfigError: The private Ray of cluster.address=local did not start"
    )
