"""The keys of synthetic training sequences: names and defaults are those of `python -m rust_data.gen`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from saf_titan.fields.ranges import FRACTION, NOT_NEGATIVE, POSITIVE, Range

MQAR_VOCABULARY = 8192
MQAR_KEYS = ("pairs", "power_a", "zoology", "no_fillers", "zoology_rows")
CLASS_TOKEN_KEYS = ("classes", "distinct", "common", "gamma", "counts", "deterministic", "query_per_class")

FIRST_EVALUATION_SEED = 800_001
"""Seeds of validation are this number + length + pairs, as published."""

FIRST_ZOOLOGY_SEED = 1337
"""`data.seed` of the first published run; see `GeneratedData.zoology`."""


@dataclass(frozen=True, kw_only=True)
class GeneratedData:
    """Settings that the generators of rust_data need beside training.seq_len and data.seed."""

    kind: Literal["tokens", "mqar", "class_tokens"] = "tokens"
    """tokens: the ids in `path`. mqar: multi-query associative recall. class_tokens: each sequence has a class, which
    its tokens show and which the model predicts at the last position. The last two are trained and validated on the
    labelled positions alone. They are generated in memory, row after row, and `path` is not read, unless `from_files`
    is true."""
    from_files: bool = False
    """mqar, class_tokens: read the rows from `path`, a folder that rust_data.gen wrote. Training uses the split train;
    calibration and validation use the two halves of the split test or val. The keys that describe the rows must have
    the values of the files."""
    pairs: Annotated[int, POSITIVE] = 8
    """mqar: number of key-value pairs in a sequence, and of queries."""
    power_a: Annotated[float, Range(above=0, high=10)] = 0.01
    """mqar: position g after the pairs holds a query with weight (g + 1)^(power_a - 1); 1 is uniform."""
    zoology: bool = False
    """mqar: the published procedure. Every `zoology_rows` sequences are one draw, whose seed is 1,000,000 + 100,000
    (seed - 1337) + the number of the draw, counted from 0; fillers come from the whole vocabulary."""
    no_fillers: bool = False
    """mqar with zoology: zeros instead of random fillers."""
    zoology_rows: Annotated[int, POSITIVE] = 16
    """mqar with zoology: sequences of one draw; in the published runs this is the batch of a step."""
    classes: Annotated[int, POSITIVE] = 4
    """class_tokens: number of classes. The token to predict for class k is the k-th after all other tokens."""
    distinct: Annotated[int, POSITIVE] = 1
    """class_tokens: number of token types of each class."""
    common: Annotated[int, NOT_NEGATIVE] = 16
    """class_tokens: number of token types of no class."""
    gamma: Annotated[float, FRACTION] = 0.0
    """class_tokens: probability that a token of the context is a token of its class. Give gamma or counts."""
    counts: tuple[int, ...] = ()
    """class_tokens: [M, N], distinct and common tokens of each context; training.seq_len is then M + N + 1."""
    deterministic: bool = False
    """class_tokens with counts: token types and classes are taken in turn instead of drawn."""
    query_per_class: bool = False
    """class_tokens: a query token for each class instead of one for all."""

    @property
    def has_answers(self) -> bool:
        """A few positions of each sequence are asked for, and the others are not trained on."""
        return self.kind != "tokens"

    @property
    def is_generated(self) -> bool:
        """Whether sequences are generated when they are needed, and not read from files."""
        return self.has_answers and not self.from_files

    @property
    def generated_vocabulary(self) -> int:
        """class_tokens: number of ids, for token types of the context, queries, and one answer for each class."""
        queries = self.classes if self.query_per_class else 1
        return self.classes * self.distinct + self.common + queries + self.classes
