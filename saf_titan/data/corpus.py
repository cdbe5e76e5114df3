"""Opens the token files at `data.path`: the ids of each split, the vocabulary, and the source of the validation ids."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from saf_titan.data.bin_files import MOST_HELD_OUT, find_files, fingerprint, hold_out
from saf_titan.data.manifest import FILE_NAME, read_manifest
from saf_titan.data.shards import Segment, TokenStream, manifest_segments

SPLITS = ("train", "val")


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """The token files of a run. `open_corpus` makes this object, after it has checked headers and sizes."""

    path: Path
    vocab_size: int
    eot: int | None
    """Id of the token that ends a document; None if it is not known."""
    has_digests: bool
    """Whether there is a manifest, which holds a digest of each file."""
    segments: dict[str, tuple[Segment, ...]]
    """Split, "train" or "val" -> the parts of files that its ids are in."""
    digests: dict[str, str]
    """Split -> a digest, which is equal for equal ids."""
    validation: str
    """Where the validation ids come from, in words."""
    unused: tuple[str, ...] = ()
    """Names of .bin files in the folder that belong to no split."""

    def num_tokens(self, split: str) -> int:
        return sum(segment.stop - segment.start for segment in self.segments[split])

    def stream(self, split: str) -> TokenStream:
        """Map the ids of a split into memory."""
        return TokenStream.of(self.segments[split], vocab_size=self.vocab_size, digest=self.digests[split])


def open_corpus(path: Path, *, vocab_size: int = 0, splits: Collection[str] = SPLITS) -> Corpus:
    """Check headers and sizes of the files of a corpus, and return the corpus.

    Args:
        path: a folder with manifest.json, a folder of .bin files, or one .bin file.
        vocab_size: size of the vocabulary, for files that do not store it; 0 if they do.
        splits: splits to open, of "train" and "val".

    Raises:
        ValueError: there is no corpus, a file is missing or damaged, or the size of the vocabulary is unknown.
    """
    if (path / FILE_NAME).exists():
        manifest = read_manifest(path)
        _require_known_vocabulary(path, {manifest.vocab_size}, vocab_size)
        return Corpus(
            path=path,
            vocab_size=manifest.vocab_size,
            eot=manifest.eot,
            has_digests=True,
            segments={split: manifest_segments(manifest, split) for split in splits},
            digests={split: manifest.digest(split) for split in splits},
            validation="the val split of manifest.json",
        )
    train_files, val_files, unused = find_files(path)
    files = [*train_files, *val_files]
    told = {file.vocab_size for file in files if file.vocab_size}
    segments: dict[str, tuple[Segment, ...]] = {}
    if val_files:
        segments["train"], segments["val"] = (
            tuple(Segment(file, 0, file.tokens) for file in split) for split in (train_files, val_files)
        )
        validation = f"{val_files[0].path.name}" + (f" and {len(val_files) - 1} more" if len(val_files) > 1 else "")
    else:
        segments["train"], segments["val"] = hold_out(train_files)
        validation = (
            f"the last tenth of the ids, at most {MOST_HELD_OUT:,}, which are not trained on "
            f"({'a single file was given' if path.is_file() else 'no file has the word val in its name'})"
        )
    eots = {file.eot for file in files}
    return Corpus(
        path=path,
        vocab_size=_require_known_vocabulary(path, told, vocab_size),
        eot=eots.pop() if len(eots) == 1 else None,
        has_digests=False,
        segments={split: segments[split] for split in splits},
        digests={split: fingerprint(segments[split]) for split in splits},
        validation=validation,
        unused=tuple(unused),
    )


def open_stream(path: Path, split: str, *, vocab_size: int = 0) -> TokenStream:
    """Map the ids of one split of a corpus into memory; for arguments and errors see `open_corpus`."""
    return open_corpus(path, vocab_size=vocab_size, splits=(split,)).stream(split)


def _require_known_vocabulary(path: Path, told: set[int], given: int) -> int:
    """Return the size of the vocabulary.

    told: sizes that the files store; given: the size in the configuration, or 0.

    Raises ValueError if no size is known, or more than one.
    """
    if not told and not given:
        raise ValueError(
            f"{path}: its files do not store the size of their vocabulary; set data.vocab_size (50257 for GPT-2)"
        )
    sizes = told | ({given} if given else set())
    if len(sizes) > 1:
        source = f"data.vocab_size is {given}, and {path} has" if given else f"{path} has files with"
        others = " and ".join(map(str, sorted(told)))
        remedy = "leave data.vocab_size out" if given and len(told) == 1 else "keep one tokenizer's files in a folder"
        raise ValueError(f"{source} a vocabulary of {others}; {remedy}")
    return sizes.pop()
