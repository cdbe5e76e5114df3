"""A registry collects one entry a module, in the order of groups and names. Covers fields/choices.py."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from saf_titan.fields.choices import OneOf
from saf_titan.fields.registry import collect, markdown_table
from saf_titan.saf.select.selector import Selector


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    package = tmp_path / "colours"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name, group in (("red", "warm"), ("blue", "cold"), ("amber", "warm")):
        (package / f"{name}.py").write_text(
            "from saf_titan.saf.select.selector import Selector\n"
            f'ENTRY = Selector(name="{name}", group="{group}", doc="is {name}", reason="")\n'
        )
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("colours")]:
        del sys.modules[name]
    import colours

    return colours


def test_order_and_table(folder: ModuleType) -> None:
    entries = collect(folder, "ENTRY", Selector, ("cold", "warm"))
    assert list(entries) == ["blue", "amber", "red"]
    assert markdown_table(entries, "colour").splitlines()[2] == "| `blue` | cold | is blue |"
    choice = OneOf.entries(entries)
    assert choice.names == ("blue", "amber", "red")
    assert choice.docs["red"] == "warm: is red"


def test_two_entries_of_one_name_are_a_mistake_of_ours(folder: ModuleType) -> None:
    path = Path(str(folder.__file__)).with_name("crimson.py")
    path.write_text(path.with_name("red.py").read_text())
    with pytest.raises(AssertionError, match="two modules of colours are named red"):
        collect(folder, "ENTRY", Selector, ("cold", "warm"))
