"""Reading a configuration: sources, precedence, and one error that lists every fault.

Covers fields/errors.py, config/toml_file.py.
"""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from saf_titan.config import ConfigError, Problem, RunConfig, Table, load_config, override_table


@pytest.fixture
def write(tmp_path: Path):
    def write_file(text: str) -> Path:
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write_file


def problems(path: Path | None, *words: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, words)
    return caught.value.problems


def only(path: Path | None, *words: str) -> Problem:
    (problem,) = problems(path, *words)
    return problem


def test_defaults_need_no_file() -> None:
    config = load_config(None, [])
    assert config == RunConfig(dump_folder="outputs/run")
    assert dataclasses.replace(config, dump_folder="") == RunConfig()


def test_file_values_are_typed_and_the_rest_is_default(write) -> None:
    config = load_config(write("[training]\nsteps = 300\nmax_norm = 2\n[compile]\ncomponents = ['loss']\n"), [])
    assert config.training.steps == 300
    assert type(config.training.max_norm) is float
    assert config.compile.components == ("loss",)
    assert config.training.seq_len == RunConfig().training.seq_len
    assert config.dump_folder == "outputs/run"


def test_the_dump_folder_of_a_file_wins_over_its_name(write) -> None:
    assert load_config(write('dump_folder = "elsewhere"'), []).dump_folder == "elsewhere"


@pytest.mark.parametrize("words", [["--training.steps", "300"], ["--training.steps=300"], ["--training.steps", "3_00"]])
def test_overrides_win(write, words: list[str]) -> None:
    assert load_config(write("[training]\nsteps = 500"), words).training.steps == 300


def test_override_values_are_toml_and_text_needs_no_quotes() -> None:
    config = load_config(
        None,
        ["--saf.exclude_layers", "[0, 11]", "--model.flavor", "1b", "--data.path=2026-11-30", "--data.shuffle=false"]
        + ["--optimizer.name", '"SGD"', "--checkpoint.load_step", "-1", "--training.seq-len", "64"],
    )
    assert config.saf.exclude_layers == (0, 11)
    assert config.model.flavor == "1b"
    assert config.data.path == "2026-11-30"
    assert config.data.shuffle is False
    assert config.optimizer.name == "SGD"
    assert config.training.seq_len == 64


def test_an_override_value_cannot_smuggle_in_a_second_key() -> None:
    problem = only(None, "--training.steps", "5\nvalue2 = 6")
    assert problem.key == "training.steps"


def test_the_last_of_two_equal_overrides_wins() -> None:
    assert load_config(None, ["--training.steps=300", "--training.steps=400"]).training.steps == 400


def test_all_faults_of_file_and_command_line_come_at_once(write) -> None:
    path = write('[training]\nstesp = 1\nseq_len = "long"\n[saf]\nrate = 2.0\n[optimizer]\nname = "adamw"\n')
    found = problems(path, "--checkpoint.keep_latest_k", "1", "--metrics.log_frq", "2")
    assert {(p.source == str(path), p.key) for p in found} == {
        (True, "training.stesp"),
        (True, "training.seq_len"),
        (True, "saf.rate"),
        (True, "optimizer.name"),
        (False, "checkpoint.keep_latest_k"),
        (False, "metrics.log_frq"),
    }
    assert {p.source for p in found} == {str(path), "command line"}


def test_the_error_is_one_line_a_fault(write) -> None:
    path = write("[training]\nsteps = -3\nseq_len = true")
    with pytest.raises(ConfigError) as caught:
        load_config(path, [])
    assert str(caught.value).splitlines() == [
        f"{path}: [training] steps = -3: must be a whole number, at least 1",
        f"{path}: [training] seq_len = true: must be a whole number",
    ]


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("[training]\nstesp = 1", "training.steps"),
        ("[training]\nlr = 1e-3", "optimizer.lr"),
        ("[trainin]\nsteps = 1", "[training]"),
        ("dump_foldr = 'x'", "dump_folder"),
        ("steps = 4", "training.steps"),
        ('[saf]\nselector = "varience"', "variance"),
        ('[model]\nflavor = "124M"', "124m"),
        ("[training]\nsteps = 1e3", "write 1000"),
    ],
)
def test_nearest_valid_name_is_offered(write, text: str, suggestion: str) -> None:
    assert suggestion in only(write(text)).message


def test_without_a_near_name_the_known_ones_are_listed(write) -> None:
    message = only(write("[report]\nzzz = 1")).message
    assert "enable" in message
    assert "heads" in message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("training = 3", "training"),
        ("[[training]]\nsteps = 1", "training"),
        ("[training.steps]\nx = 1", "training.steps"),
        ("[training]\nsteps = true", "training.steps"),
        ("[training]\nsteps = '5'", "training.steps"),
        ("[training]\nsteps = 9223372036854775808", "training.steps"),
        ("[optimizer]\nlr = nan", "optimizer.lr"),
        ("[optimizer]\nlr = inf", "optimizer.lr"),
        ("[optimizer]\nlr = 0", "optimizer.lr"),
        ("[optimizer]\nbeta1 = 1.0", "optimizer.beta1"),
        ("[saf]\nenable = 1", "saf.enable"),
        ("[saf]\nenable = 'true'", "saf.enable"),
        ("[saf]\nexclude_layers = 3", "saf.exclude_layers"),
        ("[saf]\nexclude_layers = [1.0]", "saf.exclude_layers"),
        ("[saf]\nfraction = 1.1", "saf.fraction"),
        ("[saf]\nrate = -0.1", "saf.rate"),
        ("[saf]\ncalibration_sequences = 1", "saf.calibration_sequences"),
        ("[checkpoint]\nkeep_latest_k = 1", "checkpoint.keep_latest_k"),
        ("[compile]\ncomponents = ['modle']", "compile.components"),
        ("[data]\npath = 2024-01-01", "data.path"),
        ("[training]\nglobal_batch_size = 0", "training.global_batch_size"),
        ("dump_folder = {}", "dump_folder"),
    ],
)
def test_wrong_types_and_ranges(write, text: str, key: str) -> None:
    assert only(write(text)).key == key


@pytest.mark.parametrize("value", [0, 2, 10])
def test_sentinels_beside_a_range_are_allowed(value: int) -> None:
    assert load_config(None, [f"--checkpoint.keep_latest_k={value}"]).checkpoint.keep_latest_k == value


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--training.steps"], "value is missing"),
        (["--training.steps", "--saf.rate", "0.5"], "value is missing"),
        (["training.steps=3"], "is no option"),
        (["--saf", "3"], "is a section"),
        (["--"], "is no option"),
    ],
)
def test_malformed_command_lines(words: list[str], text: str) -> None:
    assert text in str(only(None, *words))


def test_an_unknown_option_does_not_leave_its_value_behind() -> None:
    assert only(None, "--training.stesp", "3").key == "training.stesp"
    assert only(None, "--training.stesp").key == "training.stesp"


@pytest.mark.parametrize(
    "content", [b"steps = ", b"[training\n", b"a = 1\na = 2\n", b"\xff\xfe", b"x = [" + b"[" * 5000]
)
def test_a_file_that_is_not_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    assert only(path).source == str(path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "bom.toml"
    path.write_bytes(b'\xef\xbb\xbf[model]\nflavor = "debug"\n')
    assert load_config(path).model.flavor == "debug"


def test_a_key_of_torchtitan_that_we_replace_says_by_what() -> None:
    problem = only(None, "--validator.steps", "16")
    assert problem.key == "validator.steps"
    assert "set validator.tokens" in problem.message


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "debug_cpu.toml").touch()
    assert "debug_cpu.toml?" in only(tmp_path / "debug-cpu.toml").message
    assert "no such file" in only(tmp_path / "elsewhere" / "x.toml").message
    assert only(tmp_path).message.startswith("cannot be read")


def test_a_conflict_is_silent_about_values_that_could_not_be_read() -> None:
    # steps stands at its default 10000 after the fault; a warmup of 20000 may be fine for what was meant
    assert only(None, "--training.steps=many", "--lr_scheduler.warmup_steps=20000").key == "training.steps"


def test_a_file_that_cannot_be_read_raises_no_conflicts_with_defaults(tmp_path: Path) -> None:
    # 50 steps conflict with the default warmup, which the missing file may have changed
    assert "no such file" in only(tmp_path / "run.toml", "--training.steps=50").message


def test_a_conflict_points_to_the_source_that_can_be_mended(write) -> None:
    path = write("[training]\nsteps = 1000\n[lr_scheduler]\nwarmup_steps = 900")
    assert load_config(path, []).lr_scheduler.warmup_steps == 900
    problem = only(path, "--training.steps", "500")
    assert (problem.source, problem.key) == ("command line", "lr_scheduler.warmup_steps")
    assert "500" in problem.message


def test_help_and_errors_need_no_torch() -> None:
    code = "import sys, saf_titan.config as c; c.help_text(); c.load_config(None, []); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_tables_stand_between_file_and_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[training]\nsteps = 100\n[lr_scheduler]\nwarmup_steps = 1\n[saf]\nenable = true\nfraction = 0.5\n")
    tables = [Table({"training": {"steps": 200}, "saf": {"step": 20}}, "arm"), Table({"saf": {"rate": 0.5}}, "study")]
    run = load_config(file, ["--training.steps=300"], tables=tables)
    assert (run.training.steps, run.freeze_step, run.saf.rate) == (300, 20, 0.5)
    with pytest.raises(ConfigError) as error:
        load_config(file, tables=[Table({"saf": {"rat": 1}, "training": {"steps": "x"}}, "arm"), Table({}, "study")])
    lines = str(error.value).splitlines()
    assert lines[0] == "arm: [saf] rat = 1: unknown key; did you mean saf.rate?"
    assert lines[1].startswith('arm: [training] steps = "x": must be a whole number')


def test_command_line_words_as_a_table() -> None:
    table = override_table(["--saf.rate=0.5", "--dump_folder", "x", "--circuits.group", "qk:factor=2"])
    assert table.values == {"saf": {"rate": 0.5}, "dump_folder": "x", "circuits": {"group": ["qk:factor=2"]}}
    assert load_config(None, tables=[table]).circuits.group[0].factor == 2
    with pytest.raises(ConfigError, match=r"command line: \[saf\] rat = 1: unknown key"):
        override_table(["--saf.rat", "1"])
