"""No modules of the crate use each other in a circle."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "rust_data" / "src"


def module_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib") else parts


MODULES = {module_of(path): path for path in SOURCE.rglob("*.rs")}


def paths_of(tree: str) -> list[tuple[str, ...]]:
    """Spread `a::{b, c::{d, e}}` into the paths a::b, a::c::d and a::c::e."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        return [tuple(re.sub(r"\s+as\s+\w+", "", tree).split("::"))]
    inner, depth, parts = rest.rstrip().removesuffix("}"), 0, [""]
    for char in inner:
        depth += (char == "{") - (char == "}")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    prefix = tuple(part for part in head.strip().split("::") if part)
    return [prefix + path for part in parts if part.strip() for path in paths_of(part)]


def used_by(module: tuple[str, ...], path: Path) -> set[tuple[str, ...]]:
    text = path.read_text()
    # the tests of a module may use what they like
    text = text.partition("#[cfg(test)]")[0]
    found = set()
    for tree in re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?use ([^;]+);", text, re.MULTILINE):
        for words in paths_of(re.sub(r"\s+", " ", tree)):
            if words[0] == "crate":
                target = words[1:]
            elif words[0] == "super":
                supers = next((i for i, word in enumerate(words) if word != "super"), len(words))
                target = module[: len(module) - supers] + words[supers:]
            else:
                continue
            while target and target not in MODULES:
                target = target[:-1]
            found.add(target)
    return found - {module, ()}


def test_no_circle_among_modules() -> None:
    graph = {
        "::".join(module): {"::".join(other) for other in used_by(module, path)} for module, path in MODULES.items()
    }
    assert sum(map(len, graph.values())) > 100
    # raises CycleError, which names the circle
    TopologicalSorter(graph).prepare()
