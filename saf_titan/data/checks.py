"""Checks the data of a run before anything is built, and describes them. Imports no torch."""

from pathlib import Path

import numpy as np

from saf_titan.config import Problem, RunConfig, calibration_sequences, data_parallel_size
from saf_titan.data.corpus import Corpus, open_corpus
from saf_titan.data.generate import generate_rows, vocabulary
from saf_titan.data.row_folder import Rows, open_row_folder
from saf_titan.data.windows import Split, split_windows

MOST_SAMPLED = 100_000
"""Ids at the start of each file that are compared with the vocabulary before the start."""


def inspect_data(run: RunConfig, world_size: int, *, digests: bool = True) -> tuple[list[str], list[Problem]]:
    """Check headers, sizes and a sample of the ids of the run's data.

    digests: where data.verify asks for it, compare files of rows with their digests, which reads all of them. False on
        all ranks of a machine but one, and for a caller that does not use the problems. Digests of token files are
        compared when the loader is built, by all ranks together.

    Returns lines that say what the run will read, and a problem for everything that would stop the run. There are no
    lines if the data cannot be read.
    """
    if run.data.is_generated:
        return _inspect_generated(run)
    if run.data.from_files:
        return _inspect_row_files(run, world_size, digests=digests)
    path = Path(run.data.path)
    try:
        corpus = open_corpus(path, vocab_size=run.data.vocab_size)
    except (ValueError, OSError) as error:
        return [], [Problem("", "data.path", run.data.path, str(error))]
    problems = _vocabulary_problems(run, corpus)
    splits: list[tuple[Split, bool]] = [
        ("train", True),
        ("calibration", run.saf.enable and run.saf.calibration_split == "validation"),
        ("validation", run.validator.enable),
    ]
    windows = {split: _num_windows(run, corpus, split, problems) for split, needed in splits if needed}
    if run.data.verify and not corpus.has_digests:
        problems.append(
            Problem("", "data.verify", "true", f"{path} has no manifest.json with digests to compare; set it to false")
        )
    calibrated_on: Split = "calibration" if run.saf.calibration_split == "validation" else "train"
    if run.saf.enable and windows[calibrated_on]:
        wanted = calibration_sequences(run, data_parallel_size(run, world_size))
        problems += lacking_calibration(run, wanted, windows[calibrated_on])
    return _lines(run, world_size, corpus, windows), problems


def _inspect_generated(run: RunConfig) -> tuple[list[str], list[Problem]]:
    """Check generated sequences, as `inspect_data` does; the generators themselves check their settings."""
    size, rows = vocabulary(run.data), run.shape.vocab_size
    if rows < size:
        message = f"{run.data_source} have a vocabulary of {size}; set it to {size} or more"
        return [], [Problem("", "model.vocab_size", str(rows), message)]
    cells = run.validation_cells if run.validator.enable else []
    try:
        for length, pairs in [(run.training.seq_len, 0), *cells]:
            generate_rows(run.data, seed=0, first_row=0, rows=1, length=length, pairs=pairs)
    except ValueError as error:
        return [], [Problem("", "data.kind", run.data.kind, str(error))]
    lines = [f"{run.data_source}; vocabulary {size:,}; no sequence comes twice"]
    if cells:
        sets = "; ".join(f"{length} tokens{f', {pairs} pairs' if pairs else ''}" for length, pairs in cells)
        lines.append(f"validation on {run.validator.examples:,} other sequences of each kind: {sets}")
    return lines, []


def _inspect_row_files(run: RunConfig, world_size: int, *, digests: bool) -> tuple[list[str], list[Problem]]:
    """Check files of rows, as `inspect_data` does; the keys of [data] that describe the rows must be true of them."""
    data, path = run.data, Path(run.data.path)
    try:
        folder = open_row_folder(path, data)
        parts = {split: folder.part(split) for split in _splits_of_rows(run)}
        for name in {part[0] for part in parts.values()}:
            Rows(folder, name).read(np.array([0]))
    except ValueError as error:
        return [], [Problem("", "data.path", data.path, str(error))]
    problems = []
    if run.training.seq_len != folder.length:
        message = f"the rows of {path} have {folder.length} tokens; set it to {folder.length}"
        problems.append(Problem("", "training.seq_len", str(run.training.seq_len), message))
    if run.shape.vocab_size < folder.vocabulary:
        message = f"{path} has a vocabulary of {folder.vocabulary}; set it to {folder.vocabulary} or more"
        problems.append(Problem("", "model.vocab_size", str(run.shape.vocab_size), message))
    for name, value in folder.settings.items():
        if (given := getattr(data, name)) != value and not (name == "vocab_size" and not given):
            shown = str(value).lower()
            message = f"the rows of {path} have {shown}; set it to {shown}"
            problems.append(Problem("", f"data.{name}", str(given).lower(), message))
    if digests and data.verify and (damaged := folder.damaged()):
        message = f"is not what the manifest says: {', '.join(damaged)}; write the folder again"
        problems.append(Problem("", "data.path", data.path, message))
    calibrated_on: Split = "calibration" if run.saf.calibration_split == "validation" else "train"
    if run.saf.enable:
        wanted = calibration_sequences(run, data_parallel_size(run, world_size))
        problems += lacking_calibration(run, wanted, parts[calibrated_on][2])
    rows = folder.num_rows("train")
    epochs = run.tokens_per_step(data_parallel_size(run, world_size)) * run.training.steps / (rows * folder.length)
    lines = [
        f"{path}: {rows:,} rows of {folder.length} tokens to train on, vocabulary {folder.vocabulary:,}",
        f"{epochs:.3g} epochs over them",
    ]
    if run.validator.enable:
        name, _, number = parts["validation"]
        lines.append(f"validation on {min(number, run.validator.examples):,} rows of the second half of split {name}")
    return lines, problems


def _splits_of_rows(run: RunConfig) -> list[Split]:
    """Return the splits of a folder of rows that a run reads."""
    splits: list[Split] = ["train"]
    if run.saf.enable and run.saf.calibration_split == "validation":
        splits.append("calibration")
    return [*splits, "validation"] if run.validator.enable else splits


def lacking_calibration(run: RunConfig, wanted: int, num_windows: int) -> list[Problem]:
    """Return one problem if there are fewer windows for calibration than the `wanted` sequences, otherwise none."""
    if num_windows >= wanted:
        return []
    asked = run.saf.calibration_sequences
    raised = "" if wanted == asked else f"becomes {wanted} on this number of ranks, but "
    place, remedy = "calibration half of the held-out tokens", "tokenize with more --val-tokens"
    if run.data.from_files:
        place, remedy = "calibration half of the held-out rows", "write more of them"
    if run.saf.calibration_split == "train":
        place, remedy = "training split", "take more data"
    message = (
        f"{raised}the {place} in {run.data.path} has {num_windows} windows of {run.training.seq_len} tokens; "
        f"lower it, or {remedy}"
    )
    return [Problem("", "saf.calibration_sequences", str(asked), message)]


def _vocabulary_problems(run: RunConfig, corpus: Corpus) -> list[Problem]:
    rows = run.shape.vocab_size
    if rows < corpus.vocab_size:
        message = f"{corpus.path} has a vocabulary of {corpus.vocab_size}; set it to {corpus.vocab_size} or more"
        return [Problem("", "model.vocab_size", str(rows), message)]
    try:
        for split in corpus.segments:
            stream = corpus.stream(split)
            for array, end in zip(stream.arrays, stream.ends, strict=True):
                first = end - len(array)
                stream.read(first, min(end, first + MOST_SAMPLED))
    except ValueError as error:
        return [Problem("", "data.path", run.data.path, str(error))]
    return []


def _num_windows(run: RunConfig, corpus: Corpus, split: Split, problems: list[Problem]) -> int:
    """Return the number of windows of a split; if there are none, return 0 and add a problem."""
    seq_len = run.training.seq_len
    try:
        return split_windows(corpus.num_tokens("train" if split == "train" else "val"), split, seq_len)[1]
    except ValueError as error:
        problems.append(Problem("", "data.path", run.data.path, str(error)))
        return 0


def _lines(run: RunConfig, world_size: int, corpus: Corpus, windows: dict[Split, int]) -> list[str]:
    seq_len = run.training.seq_len
    eot = f"end-of-text id {corpus.eot}" if corpus.eot is not None else "no end-of-text id is known"
    lines = [
        f"{corpus.path}: {corpus.num_tokens('train'):,} training tokens, {corpus.num_tokens('val'):,} held out; "
        f"vocabulary {corpus.vocab_size:,}, {eot}",
        f"held-out tokens: {corpus.validation}; windows are cut across the borders of documents",
    ]
    if corpus.unused:
        lines.append(f"not read, as their names have neither train nor val: {', '.join(corpus.unused)}")
    if windows["train"]:
        epoch = windows["train"] * seq_len
        epochs = run.tokens_per_step(data_parallel_size(run, world_size)) * run.training.steps / epoch
        lines.append(f"{epochs:.3g} epochs over the training tokens ({windows['train']:,} windows of {seq_len:,})")
    if windows.get("validation"):
        num_windows = windows["validation"]
        if run.validator.tokens:
            num_windows = min(num_windows, max(1, run.validator.tokens // seq_len))
        lines.append(
            f"validation on {num_windows * seq_len:,} tokens, the same ones each time and on any number of ranks"
        )
        if num_windows * seq_len < run.validator.tokens - seq_len:
            lines[-1] += f" (all there are of the validator.tokens = {run.validator.tokens:,} asked for)"
    return lines
