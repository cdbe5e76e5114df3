"""Help covers every key, and a run written as TOML reads back to itself.

Covers config/host_sections.py, config/own_sections.py.
"""

import dataclasses
from pathlib import Path

import pytest

from saf_titan.config import RunConfig, help_text, load_config, to_toml

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


def test_help_names_every_key_with_default_and_documentation() -> None:
    lines = help_text().splitlines()
    for section in dataclasses.fields(RunConfig):
        value = getattr(RunConfig(), section.name)
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else []
        for option in [f"--{section.name}.{field.name}" for field in fields] or [f"--{section.name}"]:
            (index,) = [i for i, line in enumerate(lines) if line.strip().startswith(f"{option} = ")]
            assert len(lines[index + 1].strip()) > 5, f"{option} has no documentation"


def round_trip(config: RunConfig, folder: Path) -> RunConfig:
    path = folder / "resolved.toml"
    path.write_text(to_toml(config))
    return load_config(path, [])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_are_valid_and_round_trip(path: Path, tmp_path: Path) -> None:
    config = load_config(path, [])
    assert config.dump_folder == f"outputs/{path.stem}"
    assert round_trip(config, tmp_path) == config
    header = path.read_text().split("\n\n")[0]
    assert f"--config configs/{path.name}" in header
    assert "Hardware" in header


@pytest.mark.parametrize(
    "words",
    [
        ["--saf.step=7"],
        ["--saf.fraction=0.25", "--saf.exclude_layers=[1, 2]"],
        ["--dump_folder", 'a "quoted" \\ path\tand \x7f \u00e9 \U0001f600'],
        ["--optimizer.lr=1e-300", "--optimizer.eps=5e-324", "--compile.components=[]"],
        ["--model.family=llama3", "--model.flavor=8B"],
    ],
    ids=str,
)
def test_round_trip_of_odd_values(words: list[str], tmp_path: Path) -> None:
    config = load_config(None, words)
    assert round_trip(config, tmp_path) == config


def published(name: str) -> RunConfig:
    return load_config(CONFIGS[0].parent / f"{name}.toml", [])


@pytest.mark.parametrize(
    ("name", "tokens_per_step", "tokens", "static_heads"),
    [
        ("124m_4k", 491_520, 2_457_600_000, 0),
        ("124m_4k_saf25", 491_520, 2_457_600_000, 36),
        ("124m_4k_saf50", 491_520, 2_457_600_000, 72),
        ("124m_8k_saf25", 491_520, 2_457_600_000, 36),
        ("124m_16k_saf25", 491_520, 2_457_600_000, 36),
        ("124m_4k_qk10", 491_520, 2_457_600_000, 0),
        ("124m_4k_qk_ramp20", 491_520, 2_457_600_000, 0),
        ("124m_4k_qk_slow_start", 491_520, 2_457_600_000, 0),
        ("1b_8k", 524_288, 19_667_091_456, 0),
        ("1b_8k_saf25", 524_288, 19_667_091_456, 128),
        ("1b_8k_saf50", 524_288, 19_667_091_456, 256),
    ],
)
def test_published_budgets(name: str, tokens_per_step: int, tokens: int, static_heads: int) -> None:
    config = published(name)
    assert config.training.global_batch_size * config.training.seq_len == tokens_per_step
    assert tokens_per_step * config.training.steps == tokens
    heads = config.shape.num_layers * config.shape.num_heads
    assert round(config.saf.rate * heads) * config.saf.enable == static_heads
    if static_heads:
        assert config.freeze_step == config.training.steps // 2
