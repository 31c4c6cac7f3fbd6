"""The documentation's commands, links and settings exist; shell scripts and cluster files parse."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/*.md")])
SCRIPTS = sorted(ROOT.glob("scripts/*.sh"))

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def commands(page: Path) -> list[str]:
    """Lines of the page's shell blocks, continued lines joined, comments cut off."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for raw in lines if (line := re.sub(r"(^|\s)#.*", "", raw).strip())]


def overrides(command: str) -> list[str]:
    """The Hydra overrides of a command line that starts a training run, e.g. `["tree.roots=4"]`."""
    found = re.search(r"scripts/quickstart\.sh(.*)|scripts/submit\.sh.* -- (.*)|-m trainer\.main(.*)", command)
    words = shlex.split(next(group for group in found.groups() if group is not None)) if found else []
    return [word for word in words if re.match(r"[\w.]+=", word)]


@pages
def test_scripts_and_modules_exist(page):
    text = page.read_text()
    scripts = set(re.findall(r"scripts/[\w/.-]+\.(?:sh|py)", text))
    modules = set(re.findall(r"python -m ((?:envs|rollout_workers|scripts|trainer)[\w.]*\w)", text))
    assert {name for name in scripts if not (ROOT / name).is_file()} == set()
    assert {name for name in modules if not (ROOT / f"{name.replace('.', '/')}.py").is_file()} == set()


@pages
def test_internal_links_resolve(page):
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pages
def test_named_files_exist(page):
    names = set(re.findall(r"`((?:envs|rollout_workers|trainer|conf|docker|tests)/[\w./-]+\.\w+)`", page.read_text()))
    assert {name for name in names if not (ROOT / name).exists()} - {"docker/ray.env"} == set()


@pages
def test_shell_blocks_parse(page):
    text = "\n".join(commands(page))
    assert subprocess.run(["bash", "-n"], input=text.replace("<name>", "NAME"), text=True, check=False).returncode == 0


def unknown(given: list[str]) -> list[str]:
    """What is wrong with these overrides: options of groups that have no file, and keys that do not exist."""
    from trainer.compose import CONFIG_DIR, compose_settings

    pairs = [text.split("=", 1) for text in dict.fromkeys(given)]
    groups = [(key, value) for key, value in pairs if (CONFIG_DIR / key).is_dir()]
    settings = {key: value for key, value in pairs if not (CONFIG_DIR / key).is_dir()}
    missing = [f"{key}={value}" for key, value in groups if not (CONFIG_DIR / key / f"{value}.yaml").is_file()]
    return [*missing, *compose_settings([f"{key}={value}" for key, value in settings.items()]).faults]


@pages
def test_settings_on_command_lines_are_known(page):
    assert unknown([text for command in commands(page) for text in overrides(command)]) == []


def test_the_reward_that_the_readme_shows_stays_in_its_range():
    from envs.rewards import CheckedReward, Outcome
    from envs.types import EndReason

    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    module: dict[str, object] = {}
    exec(block, module)
    reward = CheckedReward(name="few_searches", function=module["few_searches"], range=(-0.5, 1.0))

    def after(searches: int, *, ok: bool) -> float:
        ended = EndReason.ANSWERED
        return reward(
            Outcome(task_id="t", truths=("x",), answer="x", score=1, format_ok=ok, end=ended, tool_calls=searches)
        )

    assert [after(2, ok=True), after(2, ok=False)] == pytest.approx([0.8, -0.5])


def test_unknown_settings_are_found():
    found = unknown(["tree.rootz=4", "tree=bush", "tree.roots=4", "tree=chain"])
    assert len(found) == 2
    assert found[0] == "tree=bush"
    assert "tree.rootz" in found[1]


def test_overrides_are_found():
    assert overrides("scripts/quickstart.sh tree.roots=4 name=x") == ["tree.roots=4", "name=x"]
    assert overrides("scripts/submit.sh --address http://H:1 -- experiment=a steps=2") == ["experiment=a", "steps=2"]
    assert overrides("ray job submit -- python -m trainer.main experiment=a") == ["experiment=a"]
    assert overrides("scripts/quickstart.sh 'env.reward.range=[-0.5,1]'") == ["env.reward.range=[-0.5,1]"]
    assert overrides("scripts/test.sh --fast") == []


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci/run"], ids=lambda path: path.name)
def test_shell_scripts_parse_and_say_what_they_do(script):
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    first, second = script.read_text().splitlines()[:2]
    assert "#" in first
    if first.startswith("#!"):
        assert second.startswith("# ")
        assert script.stat().st_mode & 0o111, f"{script.name} is not executable"


def test_ci_runs_the_command_of_the_readme():
    assert "bash scripts/test.sh" in (ROOT / ".ci/run").read_text().splitlines()
    assert "scripts/test.sh" in (ROOT / "README.md").read_text()


def test_compose_nodes_share_token_data_and_runs():
    compose = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"head", "worker"}
    for service in services.values():
        assert service["env_file"] == "ray.env"
        assert {mount.split(":")[0] for mount in service["volumes"]} == set(compose["volumes"]) == {"data", "runs"}
        assert (ROOT / "docker" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    # The port that accepts jobs is open to this machine only.
    assert services["head"]["ports"] == ["127.0.0.1:8265:8265"]


def test_kuberay_job_names_known_settings_and_the_locked_ray():
    claim, job = yaml.safe_load_all((ROOT / "docker/kuberay/rayjob.yaml").read_text())
    spec = job["spec"]
    assert (claim["kind"], job["kind"]) == ("PersistentVolumeClaim", "RayJob")
    assert unknown(overrides(spec["entrypoint"].rstrip("'"))) == []
    assert yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]["PYTHONPATH"] == "/app"
    cluster = spec["rayClusterSpec"]
    assert f"ray=={cluster['rayVersion']}" in (ROOT / "scripts/locks/gpu.txt").read_text().splitlines()
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    claims = {v["persistentVolumeClaim"]["claimName"] for g in groups for v in g["template"]["spec"]["volumes"][:1]}
    assert claims == {claim["metadata"]["name"]}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_images_copy_what_exists_and_run_as_an_ordinary_user(kind):
    lines = (ROOT / f"docker/Dockerfile.{kind}").read_text().splitlines()
    copies = [line.split()[2:-1] for line in lines if line.startswith("COPY --chown")]
    assert [name for names in copies for name in names if not (ROOT / name).exists()] == []
    assert "USER ray" in lines
    assert any("PYTHONPATH=/app" in line for line in lines)
