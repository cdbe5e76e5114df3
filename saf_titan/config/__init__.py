"""The configuration of a run: a TOML file, command-line overrides, one error that lists all faults.

Imports neither torch nor torchtitan, so that help and errors come at once.
"""

from saf_titan.config.describe import help_text, to_toml
from saf_titan.config.load import Table, load_config, override_table
from saf_titan.config.schema import RunConfig
from saf_titan.config.shapes import SHAPES, ModelShape
from saf_titan.config.world_checks import (
    calibration_sequences,
    check_world_size,
    data_parallel_size,
    world_size_of,
)
from saf_titan.fields.errors import COMMAND_LINE, ConfigError, Problem

__all__ = [
    "COMMAND_LINE",
    "SHAPES",
    "ConfigError",
    "ModelShape",
    "Problem",
    "RunConfig",
    "Table",
    "calibration_sequences",
    "check_world_size",
    "data_parallel_size",
    "help_text",
    "load_config",
    "override_table",
    "to_toml",
    "world_size_of",
]
