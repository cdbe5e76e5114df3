"""Check that a run can be shared by the ranks it was started on, and share its calibration sequences."""

from collections.abc import Mapping

from saf_titan.config.schema import RunConfig
from saf_titan.fields.errors import ConfigError, Problem


def world_size_of(environment: Mapping[str, str]) -> int:
    """Return the number of ranks that a launcher has set, 1 without a launcher. Raises ConfigError if it is invalid."""
    text = environment.get("WORLD_SIZE", "1")
    if not text.isdigit() or int(text) < 1:
        raise ConfigError([Problem("environment", "WORLD_SIZE", text, "must be a number of ranks, 1 or more")])
    return int(text)


def calibration_sequences(config: RunConfig, data_parallel: int) -> int:
    """Return the number of calibration sequences: `saf.calibration_sequences`, or the next multiple of the ranks."""
    return -(-config.saf.calibration_sequences // data_parallel) * data_parallel


def check_world_size(config: RunConfig, world_size: int) -> None:
    """Raise ConfigError unless the run can be shared by `world_size` ranks."""
    degrees = config.parallelism
    others = (
        degrees.data_parallel_replicate_degree
        * degrees.tensor_parallel_degree
        * degrees.pipeline_parallel_degree
        * degrees.context_parallel_degree
    )
    shard = degrees.data_parallel_shard_degree
    ranks = f"{world_size} rank" + ("s" if world_size > 1 else "")
    if shard == -1 and world_size % others:
        raise _world_error(
            "parallelism.data_parallel_shard_degree", shard, f"{ranks} cannot be divided by the other degrees, {others}"
        )
    if shard > 0 and shard * others != world_size:
        raise _world_error(
            "parallelism.data_parallel_shard_degree",
            shard,
            f"the degrees need {shard * others} ranks, but there are {world_size}",
        )
    data_parallel = data_parallel_size(config, world_size)
    per_round = config.training.local_batch_size * data_parallel
    size = config.training.global_batch_size
    if size > 0 and size % per_round:
        raise _world_error(
            "training.global_batch_size",
            size,
            f"must be a multiple of training.local_batch_size x data-parallel ranks = "
            f"{config.training.local_batch_size} x {data_parallel} = {per_round}",
        )
    if config.saf.enable:
        _check_calibration(config, data_parallel)


def data_parallel_size(config: RunConfig, world_size: int) -> int:
    """Return the number of ranks that read different sequences."""
    degrees = config.parallelism
    return world_size // (
        degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree * degrees.context_parallel_degree
    )


def _check_calibration(config: RunConfig, data_parallel: int) -> None:
    saf = config.saf
    sequences = calibration_sequences(config, data_parallel)
    share = sequences // data_parallel
    batch = config.calibration_batch_size
    solved_on = (share - (share % batch or batch)) * data_parallel
    if saf.compensate and solved_on < 2:
        raise _world_error(
            "saf.calibration_batch_size",
            batch,
            f"leaves {solved_on} of {sequences} calibration sequences beside the last batch of each "
            "rank, but saf.compensate needs two to solve new weights on; "
            + ("lower it, or raise saf.calibration_sequences" if batch > 1 else "raise saf.calibration_sequences"),
        )


def _world_error(key: str, value: int, message: str) -> ConfigError:
    return ConfigError([Problem("", key, str(value), message)])
