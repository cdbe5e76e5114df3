"""Generated sequences that cannot be made or validated, found by arithmetic before anything is built."""

from collections.abc import Iterator

from saf_titan.config.generated_data import (
    CLASS_TOKEN_KEYS,
    FIRST_EVALUATION_SEED,
    FIRST_ZOOLOGY_SEED,
    MQAR_KEYS,
    GeneratedData,
)
from saf_titan.config.host_sections import ValidatorSection
from saf_titan.config.schema import RunConfig
from saf_titan.fields.errors import Conflict

_LAST_ZOOLOGY_SEED = FIRST_ZOOLOGY_SEED + 20_000
"""The seeds of its draws stay below 2^31, where those of calibration begin."""


def generated_data_conflicts(config: RunConfig) -> Iterator[Conflict]:
    """Yield conflicts between the keys of [data] and [validator] and the kind of data."""
    data, validator = config.data, config.validator
    for kind, names in (("mqar", MQAR_KEYS), ("class_tokens", CLASS_TOKEN_KEYS)):
        for name in names if data.kind != kind else ():
            if getattr(data, name) != getattr(GeneratedData(), name):
                yield Conflict((f"data.{name}", "data.kind"), f'is for data.kind = "{kind}"; leave it out')
    if data.kind != "mqar" and validator.pairs:
        yield Conflict(("validator.pairs", "data.kind"), 'is for data.kind = "mqar"; leave it out')
    if data.from_files and not data.has_answers:
        yield Conflict(("data.from_files", "data.kind"), 'is for data.kind = "mqar" or "class_tokens"; leave it out')
    if not data.has_answers:
        for name in ("lengths", "examples"):
            if getattr(validator, name) != getattr(ValidatorSection(), name):
                yield Conflict(
                    (f"validator.{name}", "data.kind"),
                    "is for generated data; for token files set validator.tokens",
                )
        return
    if data.is_generated:
        yield from _generated(config)
    else:
        yield from _from_files(config)
    for name in ("tensor", "pipeline", "context"):
        if getattr(config.parallelism, f"{name}_parallel_degree") > 1:
            yield Conflict(
                (f"parallelism.{name}_parallel_degree", "data.kind"),
                "must be 1: right answers are counted with data parallelism only",
            )
    if config.saf.enable and max(validator.lengths, default=0) > config.training.seq_len:
        yield Conflict(
            ("validator.lengths", "saf.enable", "training.seq_len"),
            f"goes beyond the {config.training.seq_len} tokens of training.seq_len, to which the patterns of static "
            "heads will be fitted; leave longer ones out",
        )
    yield from _mqar(config) if data.kind == "mqar" else _class_tokens(config)


def _generated(config: RunConfig) -> Iterator[Conflict]:
    if config.data.verify:
        yield Conflict(("data.verify", "data.kind"), "is for files; generated sequences have none")
    if config.saf.enable and config.saf.calibration_split == "train":
        yield Conflict(
            ("saf.calibration_split", "data.kind"), "is for files; generated calibration sequences are new ones"
        )
    if not config.data.zoology:
        for name in ("no_fillers", "zoology_rows"):
            if getattr(config.data, name) != getattr(GeneratedData(), name):
                yield Conflict((f"data.{name}", "data.zoology"), "is for data.zoology = true; leave it out")
    elif not FIRST_ZOOLOGY_SEED <= config.data.seed <= _LAST_ZOOLOGY_SEED:
        yield Conflict(
            ("data.seed", "data.zoology"),
            f"must be {FIRST_ZOOLOGY_SEED} to {_LAST_ZOOLOGY_SEED} with data.zoology = true: seeds of the published "
            "procedure have 32 bits, and lower ones would meet those of validation",
        )


def _from_files(config: RunConfig) -> Iterator[Conflict]:
    """Keys that say how rows are made, or which others to validate on, have no effect on rows that are read."""
    for name in ("zoology", "no_fillers", "zoology_rows", "power_a", "gamma", "deterministic"):
        if getattr(config.data, name) != getattr(GeneratedData(), name):
            yield Conflict((f"data.{name}", "data.from_files"), "has no effect on rows that are read; leave it out")
    for name in ("lengths", "pairs"):
        if getattr(config.validator, name):
            yield Conflict(
                (f"validator.{name}", "data.from_files"),
                "is for generated sequences; those of the files are validated on as they are",
            )


def _mqar(config: RunConfig) -> Iterator[Conflict]:
    pairs, length = config.data.pairs, config.training.seq_len
    # queries of the published procedure sit on even offsets, so each takes two tokens
    each, word = (4, "four") if config.data.zoology else (3, "three")
    if each * pairs > length:
        yield Conflict(
            ("data.pairs", "training.seq_len"),
            f"need {each * pairs} tokens, but training.seq_len = {length}; a pair and its query take {word} tokens",
        )
    for cell_length, cell_pairs in config.validation_cells:
        if cell_pairs < 1 or each * cell_pairs > cell_length:
            yield Conflict(
                ("validator.pairs", "validator.lengths", "data.pairs", "training.seq_len"),
                f"{cell_pairs} pairs do not fit into {cell_length} tokens; a pair and its query take {word} tokens",
            )
            return
        if not config.data.zoology and FIRST_EVALUATION_SEED + cell_length + cell_pairs == config.data.seed:
            yield Conflict(
                ("data.seed",), "is the seed of the validation sequences (800001 + length + pairs); choose another"
            )


def _class_tokens(config: RunConfig) -> Iterator[Conflict]:
    data, length = config.data, config.training.seq_len
    if data.vocab_size:
        yield Conflict(("data.vocab_size", "data.kind"), "follows from classes, distinct and common; leave it out")
    if data.from_files:
        if data.counts:
            yield Conflict(("data.counts", "data.from_files"), "has no effect on rows that are read; leave it out")
        return
    if bool(data.counts) == bool(data.gamma):
        yield Conflict(("data.gamma", "data.counts"), "and data.counts are two ways to say the same; give one of them")
    elif data.counts and (len(data.counts) != 2 or min(data.counts) < 0 or sum(data.counts) + 1 != length):
        yield Conflict(
            ("data.counts", "training.seq_len"),
            f"must be [M, N] with M + N + 1 = training.seq_len = {length}",
        )
    if data.counts and config.validator.lengths:
        yield Conflict(("validator.lengths", "data.counts"), "has no effect on contexts of a fixed number of tokens")
    if data.deterministic and not data.counts:
        yield Conflict(("data.deterministic", "data.counts"), "needs data.counts")
