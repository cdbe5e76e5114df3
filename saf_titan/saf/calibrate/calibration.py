"""The results of a calibration: statistics of every head of a model, the input of selection and fit.

Legend: L layers, H query heads, T time, P blocks of the pooled picture.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from saf_titan.saf import container
from saf_titan.saf.calibrate.model_identity import Identity

_KIND, _VERSION = "calibration", 1


@dataclass(frozen=True)
class CalibrationRecord:
    """The data that the statistics were measured on."""

    num_sequences: int
    seq_len: int
    positions: tuple[int, ...] = ()
    """Where each sequence starts in its source, in tokens; the order of the sequences in the statistics."""
    seed: int = 0
    source: str = ""
    heads: tuple[int, int] | None = None
    """(layers, query heads per layer) of the model; None in files of earlier versions."""
    model: Identity | None = None
    """The model that was measured, see `model_identity`; None in files of earlier versions."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values; fields that are None are left out."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CalibrationRecord:
        """Return the record that `to_json` was called on; lists become tuples."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**fields)


@dataclass(frozen=True)
class Calibration:
    """AttentionStats of every head, stacked over layers; float64 on the CPU, NaN where a head is already static.

    The units and ranges are those of `saf_titan.ops.attention_stats.AttentionStats`.
    """

    variance_LH: Tensor
    kl_LH: Tensor
    neg_entropy_LH: Tensor
    column_mass_LHT: Tensor
    diagonal_mass_LHT: Tensor
    entropy_LH: Tensor
    mean_map_LHPP: Tensor
    live_LH: Tensor
    """False for a head that was static before this calibration."""
    record: CalibrationRecord
    extra_scores: Mapping[str, Tensor] = field(default_factory=dict)
    """Further scores (L, H) by selector name, lower = more static: those that need more than queries and keys."""

    @property
    def num_layers(self) -> int:
        return self.live_LH.shape[0]

    @property
    def num_heads(self) -> int:
        return self.live_LH.shape[1]

    @property
    def seq_len(self) -> int:
        return self.record.seq_len

    @property
    def sink_mass_LH(self) -> Tensor:
        """Mean attention on the first key, in [0, 1]."""
        return self.column_mass_LHT[..., 0] / self.seq_len

    def recent_mass_LH(self, num_keys: int = 64) -> Tensor:
        """Mean attention on the `num_keys` most recent keys (the query's own included), in [0, 1]."""
        return self.diagonal_mass_LHT[..., :num_keys].sum(-1) / self.seq_len

    def all_scores(self) -> dict[str, Tensor]:
        """Return every score (L, H), by selector name; lower = more static, NaN for static heads."""
        return {"variance": self.variance_LH, "kl": self.kl_LH, **self.extra_scores}

    def scores_of(self, selector: str) -> Tensor:
        """Return the scores (L, H) under a selector's name. Raises ValueError if the calibration has none."""
        table = self.all_scores()
        if selector not in table:
            raise ValueError(
                f"this calibration has no scores {selector!r}, it has {', '.join(sorted(table))}: add scores of a "
                f"checkpoint with saf_titan.saf calibrate CHECKPOINT --selector NAME"
            )
        return table[selector]

    def of_model(self, identity: Identity) -> Calibration:
        """This calibration with the identity of its model in the record."""
        return dataclasses.replace(self, record=dataclasses.replace(self.record, model=identity))

    def with_scores(self, **scores_LH: Tensor) -> Calibration:
        """Return a copy with further scores, each (L, H), lower = more static, under the name of their selector.

        Raises ValueError for scores of another shape.
        """
        for name, score_LH in scores_LH.items():
            if score_LH.shape != self.live_LH.shape:
                raise ValueError(
                    f"scores {name!r} have shape {tuple(score_LH.shape)}, expected (L, H) = {tuple(self.live_LH.shape)}"
                )
        return dataclasses.replace(self, extra_scores={**self.extra_scores, **scores_LH})

    def to_bytes(self) -> bytes:
        """Return the whole calibration as the bytes of a safetensors file."""
        tensors = {
            f.name: value for f in dataclasses.fields(self) if isinstance(value := getattr(self, f.name), Tensor)
        }
        # float32 is enough for pictures
        tensors["mean_map_LHPP"] = self.mean_map_LHPP.float()
        tensors |= {f"extra_scores.{name}": score_LH for name, score_LH in self.extra_scores.items()}
        return container.pack(_KIND, _VERSION, {"record": self.record.to_json()}, tensors)

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str = "the data") -> Calibration:
        """Undo `to_bytes`. Raises ValueError, which names `source`, if the bytes are not a whole calibration."""
        header, tensors = container.unpack(data, _KIND, _VERSION, source=source)
        prefix = "extra_scores."
        return cls(
            **{name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)},
            record=CalibrationRecord.from_json(header["record"]),
            extra_scores={name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)},
        )

    def save(self, path: str | Path) -> None:
        """Write the whole calibration to a file, or nothing."""
        container.write_file(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a calibration from a file. Raises ValueError, which names the file, if it is damaged or missing."""
        return cls.from_bytes(container.read_file(path, _KIND), source=str(path))
