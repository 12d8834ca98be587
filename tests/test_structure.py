"""No two modules of the package import each other in a circle, and no two of its packages do.

An import inside a function and one for types alone count like any other: a circle that only shows at run time, or only
to the type checker, is a circle all the same. What a package's `__init__` hands on of its own modules does not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import gpack

ROOT = Path(gpack.__file__).parent

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package by the name of its folder."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ("gpack", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(source: str, package: str) -> Iterator[str]:
    """Dotted names that a module's text imports, wherever in it; `package` is what a leading dot means."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def graph(known: Mapping[str, Path]) -> Graph:
    """Each module and the modules that it imports."""
    edges: Graph = {}
    for module, path in known.items():
        is_face = path.name == "__init__.py"
        names = imported(path.read_text(encoding="utf-8"), module if is_face else module.rpartition(".")[0])
        edges[module] = {
            name
            for name in names
            if name in known
            and name != module
            and not (is_face and name.startswith(f"{module}."))  # a package hands its own modules on
            and not module.startswith(f"{name}.")  # whoever imports a module has its package imported before
        }
    return edges


def packages(edges: Graph) -> Graph:
    """The first level of the tree alone; what packages hand on is left out."""
    made: Graph = {}
    for module, others in edges.items():
        if module.count(".") < 2 and (ROOT / module.rpartition(".")[2]).is_dir():
            continue
        package = module.split(".")[1] if "." in module else "gpack"
        made.setdefault(package, set()).update(other.split(".")[1] for other in others if "." in other)
        made[package].discard(package)
    return made


def circles(edges: Graph) -> list[set[str]]:
    """The sets of nodes that reach one another."""
    reached: Graph = {}
    for start in edges:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for other in edges.get(waiting.pop(), set()) - seen:
                seen.add(other)
                waiting.append(other)
        reached[start] = seen
    found: list[set[str]] = []
    for node in sorted(edges):
        circle = {other for other in reached[node] if node in reached.get(other, set())}
        if circle and circle not in found:
            found.append(circle)
    return found


def test_a_circle_is_found_however_it_is_imported() -> None:
    """The check itself, on texts whose answer is plain."""
    lazy = "def f():\n    from ..b.two import x\n"
    typed = "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from gpack.a import one\n"
    assert set(imported(lazy, "gpack.a")) == {"gpack.b.two", "gpack.b.two.x"}
    assert set(imported(typed, "gpack.b")) == {"gpack.a", "gpack.a.one"}
    assert set(imported("import gpack.a.one, os\nfrom . import three", "gpack.a")) == {
        "gpack.a.one",
        "os",
        "gpack.a",
        "gpack.a.three",
    }
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [{"a", "b", "c"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    edges = graph(modules())
    assert len(edges) > 100
    assert "gpack.container.structure" in edges["gpack.container.reader"]
    assert circles(edges) == []


def test_no_packages_import_each_other_in_a_circle() -> None:
    edges = packages(graph(modules()))
    assert edges["errors"] == set()
    assert not edges["tokenizer"] & {"sources", "tokenizer_files", "convert", "model"}
    assert circles(edges) == []


def test_what_packages_hand_on_can_be_imported_first() -> None:
    """A package's `__init__` imports nothing from outside that waits for the package's own modules."""
    found = modules()
    edges = graph(found)
    for package, path in found.items():
        if path.name != "__init__.py":
            continue
        body = ast.Module([item for item in ast.parse(path.read_text()).body if not isinstance(item, ast.If)], [])
        for item in ast.walk(body):
            if isinstance(item, ast.FunctionDef):
                item.body = [ast.Pass()]
        reached = {name for name in imported(ast.unparse(body), package) if not f"{name}.".startswith(f"{package}.")}
        reached = {name for name in reached if name in edges and not f"{package}.".startswith(f"{name}.")}
        waiting = list(reached)
        while waiting:
            waiting += (new := edges[waiting.pop()] - reached)
            reached |= new
        inside = {name for name in reached if name.startswith(f"{package}.")}
        assert not inside or package == "gpack", f"{package} waits for {min(inside)}, which waits for it"
