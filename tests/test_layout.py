"""The layout of the package: imports go down, no circle among modules, nothing loose at the root."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "saf_titan"

ORDER = (
    "study",
    "generate",
    "run",
    "report",
    "one_layer",
    "analysis",
    "hf",
    "own_loop",
    "models",
    "layers",
    "circuits",
    "data",
    "config",
    "saf",
    "compat",
    "ops",
    "fields",
    "heads",
)
"""From the top down, as docs/design.md draws it: a package imports only itself and packages to its right."""

STEPS = ("show", "install", "plan", "select", "fit", "calibrate")
"""The steps of the method, the last one first, under what shows them; selection may fit, so it stands above the fit."""

TORCH_FREE = ("heads", "fields", "config")


def is_entry_point(path: Path) -> bool:
    """Command lines stand above all packages: they may import everything, and nothing imports them."""
    return path.name == "__main__.py" or path == PACKAGE / "train.py"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(path: Path, *, at_import_time_only: bool = False) -> set[str]:
    """Modules of this package that a file imports, resolved to modules that exist."""
    found = set()
    tree = ast.parse(path.read_text())
    for node in tree.body if at_import_time_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return {name for name in found if name in MODULES}


def package_of(module: str) -> str:
    return module.split(".")[1]


def test_every_package_has_a_place_in_the_order():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(ORDER)


def test_the_root_holds_packages_and_the_entry_point():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "train.py"}


@pytest.mark.parametrize("module", [name for name, path in MODULES.items() if "." in name and not is_entry_point(path)])
def test_imports_go_down(module: str):
    package = package_of(module)
    below = ORDER[ORDER.index(package) :]
    upward = sorted(
        target for target in imports(MODULES[module]) if target != "saf_titan" and package_of(target) not in below
    )
    assert not upward, f"{module} imports from above: {upward}"


@pytest.mark.parametrize("step", STEPS)
def test_the_steps_of_the_method_import_earlier_steps_only(step: str):
    below = STEPS[STEPS.index(step) :]
    for module, path in MODULES.items():
        if module.startswith(f"saf_titan.saf.{step}"):
            steps = {target.split(".")[2] for target in imports(path) if target.count(".") > 2 and ".saf." in target}
            assert steps <= set(below), f"{module} imports a later step"


def test_nothing_imports_an_entry_point():
    entries = {name for name, path in MODULES.items() if is_entry_point(path)}
    for module, path in MODULES.items():
        assert not imports(path) & entries, f"{module} imports a command line"


def test_no_circle_among_modules():
    # raises CycleError, which names the circle; a package's own __init__ may collect what lies in the package
    graph = {name: imports(path) - {name.rpartition(".")[0]} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("package", TORCH_FREE)
def test_help_and_checks_need_no_torch(package: str):
    """Follow imports at import time from a torch-free package; none may reach torch."""
    waiting = [name for name in MODULES if name.split(".")[1:2] == [package]]
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        tree = ast.parse(MODULES[module].read_text())
        for node in tree.body:
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not any(name.split(".")[0] in ("torch", "torchtitan", "triton") for name in names), module
        waiting += imports(MODULES[module], at_import_time_only=True)
        parent = module.rpartition(".")[0]
        if parent in MODULES:
            waiting.append(parent)


def test_every_module_has_a_test_of_its_name_or_is_named_by_the_test_that_covers_it():
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    covered = " ".join(text.split('"""')[1] for text in texts.values() if text.startswith('"""'))
    missing = []
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE)
        own = ROOT / "tests" / module.parent / f"test_{module.stem}.py"
        # the entries of a registry share the test of their kind
        is_entry = module.parent.name in ("selectors", "contents")
        if path.name.startswith("__") or is_entry or own in texts or str(module) in covered:
            continue
        missing.append(str(module))
    assert not missing, "no test is named after these, and no docstring of a test says that it covers them"
