"""Byte-pair tokenizers with ids identical to tiktoken's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rust_data import _native
from rust_data.threads import num_threads

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from rust_data.arrow import MapColumn

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
BUNDLED = ("gpt2", "r50k_base", "bytes")
BYTES = Path(__file__).parent / "assets" / "bytes" / "tokenizer.json"
"""The tokenizer.json of the bundled tokenizer "bytes": a token for each byte, and the end of text."""
FROM_TIKTOKEN = ("cl100k_base", "o200k_base", "p50k_base")


class Tokenizer:
    """A tokenizer by name or from a file.

    Args:
        name: "gpt2" or "r50k_base" (bundled); "bytes" (bundled: a token for each of the 256 bytes); "cl100k_base",
            "o200k_base" or "p50k_base" (their ranks come through the installed tiktoken); the path of a byte-level
            BPE `tokenizer.json` or of a `.tiktoken` file of one of the named encodings.

    Raises:
        ValueError: if there is no such tokenizer, or if a part of its `tokenizer.json` would give other ids than
            Hugging Face `tokenizers` does; the message names the part.

    >>> ids, offsets = Tokenizer("gpt2").encode_batch(["hello world", ""])
    >>> ids.tolist(), offsets.tolist()
    ([31373, 995], [0, 2, 2])
    """

    def __init__(self, name: str | Path = "gpt2") -> None:
        self._source = str(name)
        self.native = _load(self._source)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[str]]:
        # pickled as a name or path, because data loaders send tokenizers to the workers that they spawn
        return Tokenizer, (self._source,)

    @property
    def name(self) -> str:
        return self.native.name

    @property
    def file(self) -> Path | None:
        """The tokenizer.json that this tokenizer was read from; None for GPT-2's and tiktoken's, which have none."""
        path = BYTES if self._source == "bytes" else Path(self._source)
        return path if path.suffix == ".json" else None

    @property
    def vocab_size(self) -> int:
        """Number of ids: the highest id plus one, added tokens included."""
        return self.native.vocab_size

    @property
    def eot(self) -> int:
        """Id of the token that ends a document; no text encodes to it."""
        return self.native.eot

    @property
    def sha256(self) -> str:
        """Digest of everything that changes ids or shards: ranks, merges, pre-tokenizers, added tokens, sizes.

        For GPT-2 it is the published digest of the ranks in tiktoken's format.
        """
        return self.native.sha256

    @property
    def splitter(self) -> str:
        """How text is split into words: by "native" code (only for the GPT-2 pattern) or by "regex" (all others)."""
        return self.native.splitter

    def encode(self, text: str) -> NDArray[Any]:
        """Return the ids of one text. Special tokens in it are plain text, and lone surrogates become U+FFFD."""
        return self.native.encode_batch([text], 1)[0]

    def encode_batch(self, texts: Sequence[str], threads: int | None = None) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the ids of many texts in one array. Other Python threads run meanwhile.

        Args:
            texts: The texts, as str or as UTF-8 bytes. No token is put between them.
            threads: Number of threads; by default the number of CPUs that this process may use. They end with the call.

        Returns:
            ids [sum of lengths], uint16 if the vocabulary fits it, else uint32; offsets [len(texts) + 1]:
            text i has ids[offsets[i]:offsets[i + 1]].
        """
        if isinstance(texts, str | bytes):
            raise ValueError("encode_batch takes a list of texts, got one text; use encode")
        return self.native.encode_batch(texts if isinstance(texts, list) else list(texts), num_threads(threads))

    def encode_arrow(self, texts: pa.Array | pa.ChunkedArray, threads: int | None = None) -> pa.Array | pa.ChunkedArray:
        """Return the ids of a column of texts as a column of lists; neither texts nor ids are copied.

        Args:
            texts: An array of strings without nulls, or a chunked array, such as the column of a table.
            threads: Number of threads; by default the number of CPUs that this process may use.

        Returns:
            A list for each text, chunked like the texts; the ids are uint16 if the vocabulary fits it, else uint32.

        Raises:
            ValueError: if the texts are not strings or one is null.
        """
        from rust_data.arrow import encode_arrow

        return encode_arrow(self, texts, num_threads(threads))

    def mapper(self, column: str = "text", *, to: str = "input_ids", threads: int | None = None) -> MapColumn:
        """Return a function for `datasets.Dataset.map` that adds the ids of a column.

        >>> dataset.with_format("arrow").map(tokenizer.mapper(), batched=True)  # doctest: +SKIP

        Args:
            column: The column of texts.
            to: The column for the ids; a column of that name is replaced.
            threads: Number of threads; by default the number of CPUs that this process may use. 1 is best with the
                option `num_proc` of map.
        """
        from rust_data.arrow import MapColumn

        return MapColumn(self, column, to, threads)

    def decode_bytes(self, ids: Sequence[int] | NDArray[Any]) -> bytes:
        """Return the bytes that `ids` stand for. Raises ValueError for an id that is not in the vocabulary."""
        # imported here: the command line tools start faster without NumPy
        import numpy as np

        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(f"ids must be whole numbers in one dimension, got {array.dtype} of shape {array.shape}")
        if array.size and (array.min() < 0 or array.max() >= self.vocab_size):
            bad = array[(array < 0) | (array >= self.vocab_size)][0]
            raise ValueError(f"id {bad} is not in {self.name}: must be in 0 .. {self.vocab_size - 1}")
        return self.native.decode(np.ascontiguousarray(array, dtype=np.uint32))

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text that `ids` stand for. Invalid UTF-8, for example of a cut character, becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")


def _load(name: str) -> _native.Tokenizer:
    if name == "bytes":
        return _native.Tokenizer.from_tokenizer_json(BYTES)
    if name in BUNDLED:
        return _native.Tokenizer.gpt2()
    if name in FROM_TIKTOKEN:
        encoding = _tiktoken_encoding(name)
        tokens = _rank_order(encoding._mergeable_ranks)
        return _native.Tokenizer.from_tokens(tokens, name, encoding._pat_str, encoding.eot_token)
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        return _native.Tokenizer.from_tokenizer_json(path)
    if path.suffix == ".tiktoken" and path.is_file():
        return _load_tiktoken_file(path)
    known = ", ".join(BUNDLED + FROM_TIKTOKEN)
    raise ValueError(f"tokenizer {name!r}: expected one of {known} or an existing tokenizer.json or .tiktoken file")


def _rank_order(ranks: dict[bytes, int]) -> list[bytes]:
    tokens = [b""] * (max(ranks.values()) + 1)
    for token, rank in ranks.items():
        tokens[rank] = token
    return tokens


def _tiktoken_encoding(name: str) -> Any:
    try:
        import tiktoken
    except ImportError:
        raise ValueError(f"tokenizer {name!r} needs tiktoken for its ranks: pip install tiktoken") from None
    return tiktoken.get_encoding(name)


_CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_O200K_UPPER, _O200K_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K_PATTERN = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_O200K_UPPER}*{_O200K_LOWER}+{_O200K_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_O200K_UPPER}+{_O200K_LOWER}*{_O200K_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
# a .tiktoken file holds only ranks; these are the name, pattern and end-of-text id that belong to its digest
_FILES = {
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": ("r50k_base", GPT2_PATTERN, 50256),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": ("p50k_base", GPT2_PATTERN, 50256),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": ("cl100k_base", _CL100K_PATTERN, 100257),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": ("o200k_base", _O200K_PATTERN, 199999),
}


def _load_tiktoken_file(path: Path) -> _native.Tokenizer:
    digest = _native.sha256(path)
    if digest not in _FILES:
        known = ", ".join(name for name, _, _ in _FILES.values())
        raise ValueError(
            f"{path}: not the ranks of {known}, and a .tiktoken file holds no pattern for others; use a tokenizer.json"
        )
    return _native.Tokenizer.from_tiktoken_file(path, *_FILES[digest])
