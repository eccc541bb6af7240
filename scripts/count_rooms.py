"""Print what the library consists of: lines of each room and what they are, imports, sizes, functions that calls enter.

``python scripts/count_rooms.py`` counts the checkout that it lies in; ``--calls`` also counts the functions that calls
enter, which takes a minute. These are the tables of decisions 0024, 0050 and 0066.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "kernmantle"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
FLOORS = ("backends", "structured")  # folders of rooms
ROW = "| {} | {} | {} | {} | {} |"


def room(path: Path) -> str:
    """Return the room of a file."""
    parts = path.relative_to(PACKAGE).parts[:-1]
    if not parts:
        return "(root)"
    return "/".join(parts[:2]) if parts[0] in FLOORS else parts[0]


def length(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def rooms() -> Iterator[str]:
    """Yield the table of modules, headers and their lines for every room."""
    files = {kind: sorted(PACKAGE.rglob(f"*.{kind}")) for kind in ("py", "cuh")}
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: {"py": [], "cuh": []})
    for kind, paths in files.items():
        for path in paths:
            for name in (room(path), "all"):
                found[name][kind].append(length(path))
    yield ROW.format("room", "modules", "lines", "CUDA headers", "lines")
    yield "|---|---|---|---|---|"
    for name in [*sorted(set(found) - {"all"}), "all"]:
        python, cuda = found[name]["py"], found[name]["cuh"]
        yield ROW.format(f"`{name}`" if name != "all" else name, len(python), sum(python),
                         *((len(cuda), sum(cuda)) if cuda else ("", "")))  # fmt: skip


def kinds() -> Iterator[str]:
    """Yield the table of what the lines of every room are."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(PACKAGE.rglob("*.py")):
        own = Counter(kind for _, kind in kinds_of(path.read_text(encoding="utf-8")))
        for name in (room(path), "all"):
            found[name] += own
    names = ("code", "signature", "table", "error", "docstring", "blank", "import", "comment")
    yield f"| room | {' | '.join(names)} |\n|---|{'---|' * len(names)}"
    for name in [*sorted(set(found) - {"all"}), "all"]:
        yield f"| `{name}` | {' | '.join(str(found[name][kind]) for kind in names)} |"


def spanned(node: ast.stmt) -> range:
    """Return the numbers of the lines of a statement."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def kinds_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield every line's number and kind; tables are constants of modules and fields of classes."""
    marked: dict[int, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            marked |= dict.fromkeys(spanned(node), "import")
        elif isinstance(node, ast.Raise):
            marked |= dict.fromkeys(spanned(node), "error")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            marked |= dict.fromkeys(range(first, node.body[0].lineno), "signature")
        if isinstance(node, (ast.Module, ast.ClassDef)):
            for each in node.body:
                if isinstance(each, (ast.Assign, ast.AnnAssign)):
                    marked |= dict.fromkeys(spanned(each), "table")
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            marked |= dict.fromkeys(spanned(node.body[0]), "docstring")
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        yield number, marked.get(number) or ("blank" if not bare else "comment" if bare.startswith("#") else "code")


def imported(path: Path, tree: ast.Module) -> Iterator[Path]:
    """Yield the other modules of the library that a module imports, each as often as it does."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        folder = path.parent
        for _ in range(node.level - 1):
            folder = folder.parent
        base = folder.joinpath(*node.module.split(".")) if node.module else folder
        for name in node.names:
            candidates = (
                base / f"{name.name}.py",
                base / name.name / "__init__.py",
                base.with_suffix(".py"),
                base / "__init__.py",
            )
            found = next((file for file in candidates if file.exists()), path)
            if found != path:
                yield found


def functions(tree: ast.Module) -> Iterator[int]:
    """Yield the lengths of functions in lines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def sizes() -> Iterator[str]:
    """Yield the table of imports and the sizes of modules and functions."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    pairs = {(path, found) for path, tree in trees.items() for found in imported(path, tree)}
    inside = sum(room(one) == room(other) for one, other in pairs)
    modules = sorted(map(length, trees))
    bodies = sorted(size for tree in trees.values() for size in functions(tree))
    yield "| | |\n|---|---|"
    yield f"| imports of other modules | {len(pairs)} |"
    yield f"| of them inside the room | {100 * inside / len(pairs):.0f} % |"
    yield f"| lines of a module, median and most | {statistics.median(modules):.0f}, {modules[-1]} |"
    part = bodies[int(0.95 * len(bodies))]
    most = f"{statistics.median(bodies):.0f}, {part}, {bodies[-1]}"
    yield f"| lines of a function, median, 95th percentile and most | {most} |"


def entered(call: Callable[[], Any]) -> tuple[int, int, int]:
    """Return how many functions of the library a call enters, how often, and in how many files these are."""
    found: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            found[frame.f_code] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(found), found.total(), len({code.co_filename for code in found})


def calls() -> Iterator[str]:
    """Yield the table of what the first and the fourth of equal calls on a CPU enter, without gradients."""
    sys.path.insert(0, str(PACKAGE.parent))
    import torch  # noqa: PLC0415

    import kernmantle as km  # noqa: PLC0415

    x, y, v = (torch.randn(*shape) for shape in ((64, 16), (48, 16), (48, 3)))
    distance: Callable[[Any, Any], Any] = lambda a, b: abs(a - b)  # noqa: E731
    kernel, factors = km.Gaussian(1.5), [torch.randn(4, 4) for _ in range(2)]
    layer = km.KSLinear(16, 16, km.kronsparse.monarch((16, 16), p=4, q=4))
    a = torch.eye(32, dtype=torch.float64) * 3
    every: dict[str, Callable[[], Any]] = {
        "km.cdist(x, y)": lambda: km.cdist(x, y),
        'km.contract("mk,nk->mn", ...)': lambda: km.contract("mk,nk->mn", distance, x, y),
        "k.matmul(x, y, v)": lambda: kernel.matmul(x, y, v),
        "km.kron_matmul(x, factors)": lambda: km.kron_matmul(x, factors),
        "KSLinear.forward": lambda: layer(x),
        "km.linalg.solve_cholesky(a, b)": lambda: km.linalg.solve_cholesky(a, a[:, 0]),
    }
    yield "| call | first: functions in files | warm: calls in files |\n|---|---|---|"
    with tempfile.TemporaryDirectory() as cache, km.config(cache_dir=cache), torch.no_grad():
        for name, call in every.items():
            first, *_, warm = (entered(call) for _ in range(4))
            yield f"| `{name}` | {first[0]} in {first[2]} | {warm[1]} in {warm[2]} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true", help="count the functions that calls enter, too")
    with_calls = parser.parse_args().calls
    for table in (rooms, kinds, sizes, *([calls] if with_calls else [])):
        sys.stdout.write("\n".join(table()) + "\n\n")


if __name__ == "__main__":
    main()
