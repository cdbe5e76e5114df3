"""`[[circuits.group]]` in files and its one-word form on the command line."""

from pathlib import Path

import pytest

from saf_titan.config import ConfigError, load_config, to_toml
from saf_titan.config.circuit_groups import CircuitGroup

SLOW_START = CircuitGroup(
    match="qk", layers=(6, 11), factor=0.25, schedule="hold_then_ramp", hold_steps=200, ramp_steps=50
)
WORD = "qk:layers=6-11,factor=0.25,schedule=hold_then_ramp,hold_steps=200,ramp_steps=50"


def test_file_and_command_line_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        '[[circuits.group]]\nmatch = "qk"\nlayers = [6, 11]\nfactor = 0.25\nschedule = "hold_then_ramp"\n'
        'hold_steps = 200\nramp_steps = 50\n[[circuits.group]]\nmatch = "mlp"\nfactor = 2\n'
    )
    expected = (SLOW_START, CircuitGroup(match="mlp", factor=2.0))
    assert load_config(path).circuit_groups == expected
    words = ["--circuits.group", WORD, "--circuits.group=mlp:factor=2"]
    assert load_config(None, words).circuit_groups == expected
    # the command line replaces the groups of the file
    assert load_config(path, ["--circuits.group", "ov:factor=3"]).circuit_groups == (
        CircuitGroup(match="ov", factor=3.0),
    )


def test_groups_read_back(tmp_path: Path) -> None:
    config = load_config(None, ["--circuits.group", WORD, "--circuits.group", r"feed_forward\.w1:factor=0.5"])
    path = tmp_path / "run.toml"
    path.write_text(to_toml(config))
    assert load_config(path).circuits == config.circuits


def test_the_short_form_is_a_group_too() -> None:
    config = load_config(
        None, ["--circuits.qk_lr_ratio=10", "--circuits.layers=[0, 5]", "--circuits.group=mlp:factor=2"]
    )
    assert config.circuit_groups == (
        CircuitGroup(match="qk", layers=(0, 5), factor=10.0),
        CircuitGroup(match="mlp", factor=2.0),
    )
    assert load_config(None).circuit_groups == ()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("qk:factr=2", "'factr=2' is no option of a group"),
        ("qk:factor=-1", "factor = -1: must be a number, above 0"),
        ("qk:factor=two", "could not convert"),
        ("qk:layers=6", "layers=6: write first-last"),
        ("qk:layers=6-12,factor=2", r"qk\[6-12\]: layers must be \[first, last\] with 0 <= first <= last <= 11"),
        ("qk:schedule=linear", "qk: ramp_steps must be at least 1"),
        ("qk:ramp_steps=5", "qk: ramp_steps has no effect with schedule"),
        ("qk:schedule=cosine", "schedule = .cosine.: must be one of"),
        ("w[:factor=2", "is neither one of qk, ov, mlp, norm, embedding nor a pattern"),
    ],
)
def test_mistakes_name_the_group_and_the_key(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, ["--circuits.group", word])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("factor = 2\n", "a group needs match"),
        ('match = "qk"\nlr = 2\n', "lr is not a key of a group"),
        ('match = "qk"\nfactor = "2"\n', 'factor = "2": must be a number'),
    ],
)
def test_mistakes_of_a_file(table: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[[circuits.group]]\n" + table)
    with pytest.raises(ConfigError, match=message):
        load_config(path)
