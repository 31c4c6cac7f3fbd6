"""Finds in a module's syntax tree what could run code that came in a file, whichever way it was imported."""

import ast
from collections.abc import Iterator

FORBIDDEN = {
    *("eval", "exec", "compile", "__import__", "marshal", "runpy", "shelve", "dill", "cloudpickle", "joblib"),
    *("os.system", "os.popen", "os.exec*", "os.spawn*", "os.posix_spawn*", "pty.spawn"),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell"),
    *("importlib.util.spec_from_file_location", "importlib.machinery.SourceFileLoader"),
    *("torch.load", "torch.serialization.load", "torch.hub.load", "numpy.load", "pandas.read_pickle"),
    *("yaml.load*", "yaml.full_load*", "yaml.unsafe_load*", "yaml.Loader", "yaml.UnsafeLoader"),
}
"""Functions, and modules with all that is in them; `*` stands for any end of a name."""
UNPICKLING = {"pickle.load", "pickle.loads", "pickle.Unpickler", "pickle._Unpickler", "_pickle"}
IMPORTING = {"importlib.import_module"}


def uses(source: str, of: set[str] = FORBIDDEN) -> list[str]:
    """What a module imports or mentions of `of`, sorted, each once."""
    found = {name for name in _names(ast.parse(source)) if any(_is(name, one) for one in of)}
    return sorted(found)


def _is(name: str, one: str) -> bool:
    return name.startswith(one[:-1]) if one.endswith("*") else name == one or name.startswith(f"{one}.")


def _names(tree: ast.Module) -> Iterator[str]:
    """Full dotted names: `from os import system as run` and `run("ls")` both give `os.system`."""
    known = {"builtins": ""}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known.setdefault(alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else "")
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}".removeprefix("builtins.")
    safe = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and _reads_tensors_only(node)]
    for node in ast.walk(tree):
        head, dot, rest = ("" if node in safe else _dotted(node)).partition(".")
        yield f"{known.get(head) or head}{dot}{rest}".removeprefix("builtins.")


def _reads_tensors_only(call: ast.Call) -> bool:
    """`torch.load(x, weights_only=True)`, which unpickles nothing but tensors; said, not left to a default."""
    values = [word.value for word in call.keywords if word.arg == "weights_only"]
    return any(isinstance(value, ast.Constant) and value.value is True for value in values)


def _dotted(node: ast.AST) -> str:
    """`a.b.c` of a name, of attributes of one, and of `getattr(a.b, "c")`; empty for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
        case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(name)), *_]):
            return f"{_dotted(value)}.{name}"
    return ""
