"""Encodes Arrow columns of texts to Arrow columns of ids, without a copy of the buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rust_data.threads import num_threads

if TYPE_CHECKING:
    from rust_data.tokenizer import Tokenizer


def encode_arrow(tokenizer: Tokenizer, texts: pa.Array | pa.ChunkedArray, threads: int) -> Any:
    """Return the ids of a column of texts; see `Tokenizer.encode_arrow`.

    Legend: N texts, B bytes.

    Raises:
        ValueError: if the column is not of strings, if it has a null (the message names the row), or if a chunk
            has 2**31 ids or more.
    """
    if isinstance(texts, pa.ChunkedArray):
        ids = pa.list_(pa.uint16() if tokenizer.vocab_size <= 1 << 16 else pa.uint32())
        return pa.chunked_array([encode_arrow(tokenizer, chunk, threads) for chunk in texts.chunks], type=ids)
    if not isinstance(texts, pa.Array) or texts.type not in (pa.string(), pa.large_string()):
        kind = texts.type if isinstance(texts, pa.Array) else type(texts).__name__
        raise ValueError(f"texts: expected an Arrow array of strings, got {kind}")
    if texts.null_count:
        row = texts.is_null().to_pylist().index(True)
        raise ValueError(f"texts: row {row} is null; leave out rows without a text")
    _, bounds, data = texts.buffers()
    bounds_N: Any = np.zeros(1, dtype=np.int64)
    # an array without texts may have no buffer
    if len(texts):
        width = np.int32 if texts.type == pa.string() else np.int64
        bounds_N = np.frombuffer(bounds, dtype=width)[texts.offset : texts.offset + len(texts) + 1]
    data_B = np.frombuffer(data or b"", dtype=np.uint8)
    ids, offsets = tokenizer.native.encode_buffer(data_B, bounds_N.astype(np.int64, copy=False), threads)
    if len(ids) >= 2**31:
        raise ValueError(f"texts: {len(ids)} ids in one chunk; give fewer texts at a time")
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids))


class MapColumn:
    """Adds the ids of a column to a table; `Tokenizer.mapper` returns one."""

    def __init__(self, tokenizer: Tokenizer, column: str, to: str, threads: int | None) -> None:
        self.tokenizer, self.column, self.to, self.threads = tokenizer, column, to, threads
        # `datasets` caches results by the state of this object; with the digest, those of another vocabulary differ
        self.sha256 = tokenizer.sha256

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the table with the ids as a new column, which replaces a column of that name.

        Raises:
            ValueError: if the batch is not a table, does not have the column, or the column cannot be encoded.
        """
        if not isinstance(table, pa.Table):
            raise ValueError('mapper: expected tables; use dataset.with_format("arrow").map(..., batched=True)')
        if self.column not in table.column_names:
            raise ValueError(f"mapper: no column {self.column!r}; there are {', '.join(table.column_names)}")
        ids = encode_arrow(self.tokenizer, table[self.column], num_threads(self.threads))
        if self.to in table.column_names:
            return table.set_column(table.column_names.index(self.to), self.to, ids)
        return table.append_column(self.to, ids)
