"""Configurations that come with the package are found by name; a path wins."""

from pathlib import Path

import pytest

from saf_titan.config import ConfigError, load_config
from saf_titan.config.packaged import packaged_names


def test_the_packaged_configurations_are_those_of_the_repository() -> None:
    assert set(packaged_names()) == {path.stem for path in (Path(__file__).parents[2] / "configs").glob("*.toml")}


@pytest.mark.parametrize("name", ["debug_cpu", "debug_cpu.toml"])
def test_a_name_finds_a_packaged_configuration(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(name).model.flavor == "debug"
    assert load_config(name).dump_folder == "outputs/debug_cpu"


def test_a_file_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("debug_cpu.toml").write_text(
        "[training]\nsteps = 70\nlocal_batch_size = 1\n[lr_scheduler]\nwarmup_steps = 1\n"
    )
    assert load_config("debug_cpu.toml").training.steps == 70
    assert load_config(tmp_path / "debug_cpu.toml").training.steps == 70


def test_a_path_is_never_taken_for_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; did you mean debug_cpu\?"):
        load_config(tmp_path / "debug_cpu.toml")
    with pytest.raises(ConfigError, match=r"no such file; the package comes with 124m_16k, "):
        load_config(tmp_path / "zzzzzzzzzzzz.toml")
