"""The size rules of the code base as a check: files, functions, and what may lie at the top level."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 400
LOOP_LINES = 150
"""`trainer/loop.py` is read as a table of contents."""
FUNCTION_LINES = 60
FREE_FUNCTIONS = {Path("trainer/loop.py")}
"""Files whose functions may be longer: the loop is one story."""
TOP_LEVEL = {"pyproject.toml", "trainer", "rollout_workers", "envs", "conf", "scripts", "tests", "docker", "docs"} | {
    "README.md",
    "LICENSE",
    "CONTRIBUTING.md",
}


def project_files() -> list[Path]:
    """Files that git tracks or would track, relative to the repository root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in names if Path(name).is_file()]


def long_functions(path: Path) -> Iterator[str]:
    """One sentence per function of `path` that is longer than allowed, its docstring included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines, more than {FUNCTION_LINES}"


def problems(files: list[Path]) -> Iterator[str]:
    """One sentence per broken rule."""
    for name in sorted({path.parts[0] for path in files} - TOP_LEVEL):
        if not name.startswith("."):
            yield f"{name}: not one of the fixed top-level names {', '.join(sorted(TOP_LEVEL))}"
    for path in files:
        if path.suffix not in {".py", ".sh", ".yaml"}:
            continue
        lines = len(path.read_text().splitlines())
        limit = LOOP_LINES if path == Path("trainer/loop.py") else FILE_LINES
        if lines > limit:
            yield f"{path}: {lines} lines, more than {limit}"
        if path.suffix == ".py" and path not in FREE_FUNCTIONS:
            yield from long_functions(path)


def main() -> int:
    """Prints every problem; the exit code is 1 if there was any."""
    found = list(problems(project_files()))
    print("\n".join(found) or "sizes and top level: fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
