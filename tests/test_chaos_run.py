"""A real job under the faults of environments and of a retriever, through the chaos script itself."""

import json
from pathlib import Path

import pytest

from scripts import chaos

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
FAULTS = ["env_junk", "env_huge_text", "env_not_utf8", "retriever_invalid_json"]


def test_bad_environments_and_a_bad_retriever_cost_their_branches_only(tmp_path: Path) -> None:
    file = tmp_path / "chaos.json"
    code = chaos.main(["--json", str(file), "--seed", "5", *(word for name in FAULTS for word in ("--only", name))])
    found = json.loads(file.read_text())
    assert code == 0, found
    assert [name for name, outcome in found["faults"].items() if outcome["ok"]] == FAULTS
