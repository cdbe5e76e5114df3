"""torchtitan's metrics with a progress line, a metrics.jsonl, and learning rates per circuit."""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # isort: skip

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.tools.logging import logger

from saf_titan.report.format import perplexity_text
from saf_titan.report.row_lines import write_row
from saf_titan.report.rows import (
    METRICS_FILE,
    AccuracyRow,
    CircuitsRow,
    FreezeRow,
    FreezeUndoneRow,
    RelevanceRow,
    Row,
    TrainRow,
    ValidationRow,
    perplexity,
)
from saf_titan.run.freezer import FreezeResult
from saf_titan.run.loggers import log_freeze


class RunMetrics(MetricsProcessor):
    """Logs to the console, to ``metrics.jsonl`` and to the loggers of torchtitan that the run enables.

    Step times and tokens per second count optimizer steps only, not validation, checkpoints or the freeze.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        total_steps: int = 0
        """Steps of the whole run, for the ETA."""

    def __init__(self, config: Config, *, dump_folder: str = "./outputs", **kwargs: Any):
        super().__init__(config, dump_folder=dump_folder, **kwargs)
        self._total_steps = config.total_steps
        # in a pipeline only the ranks of the last stage know the loss
        stages, ranks = self.parallel_dims.pp, self.parallel_dims.world_size
        self._knows_loss = torch.distributed.get_rank() >= ranks // stages * (stages - 1)
        writes = torch.distributed.get_rank() == ranks // stages * (stages - 1)
        self._path = Path(dump_folder) / METRICS_FILE if writes else None
        if self._path is not None:
            end_last_line(self._path)
        self._step_start: float | None = None
        self._seconds = 0.0
        self._num_steps = 0
        self._last_step_seconds = 0.0
        # set by the trainer, reported by this class
        self.tokens_per_step = 0
        self.tokens_seen: Callable[[], int] = lambda: 0
        self.elapsed: Callable[[], float] = lambda: math.nan
        self.num_heads = 0
        self.num_static_heads = 0
        self.validation_phase = "scheduled"
        self.last_validated_step = 0
        self.last_validation_loss = 0.0

    def start_anew(self) -> None:
        """Rename the metrics of an earlier run in the folder, because this run does not continue that one."""
        if self._path is not None:
            set_aside_metrics(self._path.parent)

    def should_log(self, step: int) -> bool:
        return super().should_log(step) or step == self._total_steps

    def begin_step(self) -> None:
        """Start the clock of an optimizer step."""
        self._step_start = time.perf_counter()

    def end_step(self) -> float:
        """Return the seconds of the last optimizer step, and stop its clock unless logging the step has done so."""
        if self._step_start is not None:
            self._last_step_seconds = time.perf_counter() - self._step_start
            self._seconds += self._last_step_seconds
            self._num_steps += 1
            self._step_start = None
        return self._last_step_seconds

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        self.end_step()
        # torchtitan sums counters that each rank keeps, which is wrong after a change of the number of ranks; and steps
        # times the batch size is wrong after a change of the batch size; so count by the cursor of the loader
        num_tokens = self.tokens_seen()
        extra = {**(extra_metrics or {}), "n_tokens_seen": num_tokens}
        memory = self.device_memory_monitor.get_peak_stats()
        step_seconds = self._seconds / self._num_steps
        tokens_per_second = self.tokens_per_step / step_seconds
        rank_tokens_per_second = tokens_per_second / self.parallel_dims.world_size
        tflops = self.num_flops_per_token * rank_tokens_per_second / 1e12
        metrics = {
            "loss_metrics/global_avg_loss": global_avg_loss,
            "loss_metrics/global_max_loss": global_max_loss,
            "grad_norm": grad_norm,
            "throughput(tps)": rank_tokens_per_second,
            "tflops": tflops,
            "time_metrics/end_to_end(s)": step_seconds,
            "time_metrics/data_loading(s)": sum(self.data_loading_times) / max(1, len(self.data_loading_times)),
            "memory/max_active(GiB)": memory.max_active_gib,
            "memory/max_reserved(GiB)": memory.max_reserved_gib,
            "memory/num_alloc_retries": memory.num_alloc_retries,
            "memory/num_ooms": memory.num_ooms,
            "saf/static_heads": self.num_static_heads,
            **extra,
        }
        if not compat.is_cpu():
            metrics["mfu(%)"] = 100 * tflops * 1e12 / self.gpu_peak_flops
        self.logger.log(metrics, step)

        rates = {key: value for key, value in extra.items() if key.startswith("lr/")}
        self.write(
            TrainRow(
                step=step,
                loss=global_avg_loss,
                grad_norm=grad_norm,
                tokens_per_second=tokens_per_second,
                step_seconds=step_seconds,
                tokens=num_tokens,
                static_heads=self.num_static_heads,
                tflops=tflops,
                seconds=self.elapsed(),
                peak_memory_gib=memory.max_reserved_gib,
                rates={key.removeprefix("lr/"): rate for key, rate in rates.items()},
            )
        )
        self._say(
            f"step {step}/{self._total_steps} | loss {global_avg_loss:.4f} | "
            f"{perplexity_text(global_avg_loss)} | grad {grad_norm:.3f} | "
            f"{tokens_per_second:,.0f} tok/s | lr {_rates(rates)} | static {self.num_static_heads}/{self.num_heads} | "
            f"{memory.max_reserved_gib:.1f} GiB | eta {_duration((self._total_steps - step) * step_seconds)}"
        )
        self._seconds, self._num_steps = 0.0, 0
        self._reset()

    def log_validation(self, loss: float, step: int, extra_metrics: dict[str, Any] | None = None) -> None:
        metrics = {"validation_metrics/loss": loss, "validation_metrics/perplexity": perplexity(loss)}
        self.logger.log({**metrics, **(extra_metrics or {})}, step)
        self.write(ValidationRow(step=step, loss=loss, phase=self.validation_phase))
        self._say(
            f"step {step}/{self._total_steps} | validation loss {loss:.4f}, {perplexity_text(loss)} "
            f"({self.validation_phase})"
        )
        self.last_validated_step, self.last_validation_loss = step, loss
        self._reset()

    def log_accuracy(self, row: AccuracyRow) -> None:
        """Write the accuracy on one set of generated sequences."""
        name = f"{row.length} tokens{f', {row.pairs} pairs' if row.pairs else ''}"
        self.logger.log({f"validation_metrics/accuracy ({name})": row.accuracy}, row.step)
        self.write(row)
        self._say(
            f"step {row.step}/{self._total_steps} | accuracy {row.accuracy:.4f}, all answers right in "
            f"{row.all_right:.4f} of {row.examples} sequences of {name} ({row.phase})"
        )

    def log_relevance(self, row: RelevanceRow) -> None:
        """Write where attention looks on one set; torchtitan's loggers get mean mass and confidence of each layer."""
        name = f"{row.length} tokens{f', {row.pairs} pairs' if row.pairs else ''}"
        metrics: dict[str, float] = {}
        for key, by_layer in (("mass", row.mass), ("confidence", row.confidence)):
            for layer, of_heads in enumerate(by_layer):
                known = [x for x in of_heads if math.isfinite(x)]
                if known:
                    metrics[f"relevance/{key} ({name})/layer_{layer}"] = sum(known) / len(known)
        self.logger.log(metrics, row.step)
        self.write(row)

    def log_circuits(self, row: CircuitsRow) -> None:
        """Write a measurement of the circuits; torchtitan's loggers get a number for each layer and their mean."""
        metrics: dict[str, float] = {}
        for name in ("qk_update", "ov_update", "entropy", "sink_mass", "recent_mass"):
            by_layer = {layer: x for layer, x in enumerate(getattr(row, name)) if math.isfinite(x)}
            metrics |= {f"circuits/{name}/layer_{layer}": x for layer, x in by_layer.items()}
            if by_layer:
                metrics[f"circuits/{name}/mean"] = sum(by_layer.values()) / len(by_layer)
        self.logger.log(metrics, row.step)
        self.write(row)

    def log_freeze(self, row: FreezeRow | FreezeUndoneRow, result: FreezeResult) -> None:
        """Write the outcome of a freeze; torchtitan's loggers get its scalars and pictures of the heads."""
        self.write(row)
        log_freeze(self.logger, row, result)

    def write(self, row: Row) -> None:
        """Append one row to ``metrics.jsonl``, with one write; only the first rank that knows the loss does so."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(write_row(row))

    def _say(self, line: str) -> None:
        if self._knows_loss:
            logger.info(line)

    def _reset(self) -> None:
        self.ntokens_since_last_log = 0
        self.data_loading_times.clear()
        self.time_last_log = time.perf_counter()
        self.device_memory_monitor.reset_peak_stats()


def set_aside_metrics(folder: Path) -> None:
    """Rename the metrics of an earlier run that this run does not continue, so that the two do not mix."""
    path = folder / METRICS_FILE
    if not path.exists() or not path.stat().st_size:
        return
    number = 1
    while (kept := path.with_name(f"metrics.{number}.jsonl")).exists():
        number += 1
    path.rename(kept)
    logger.info(f"The metrics of an earlier run in {folder} are kept as {kept.name}")


def end_last_line(path: Path) -> None:
    """End the last line if a killed process or a full disk cut it short, so that the next row starts a new line."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        if file.seek(0, 2) and (file.seek(-1, 2), file.read(1))[1] != b"\n":
            file.write(b"\n")


def _rates(rates: dict[str, float]) -> str:
    """Return the learning rate of each group as text, without ``no_decay``, whose rate is that of ``other``."""
    return " ".join(f"{key.removeprefix('lr/')} {rate:.2e}" for key, rate in rates.items() if key != "lr/no_decay")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"
