"""The tokenizer.json beside the shards that were made with it, so that their ids can always be read as text.

The manifest names the tokenizer by its digest, not the file: what lies there counts only if it has that digest.
"""

from __future__ import annotations

from pathlib import Path

from rust_data.folder import whole_file
from rust_data.tokenizer import Tokenizer

NAME = "tokenizer.json"


def file_to_keep(tokenizer: Tokenizer, folder: Path) -> bytes | None:
    """What `keep_file` is to write into the folder of a corpus: the tokenizer's own file as it is now.

    None for a tokenizer without a tokenizer.json (those by name, and .tiktoken files), and where its file, or one of
    the same digest, lies in the folder already.

    Raises:
        ValueError: if the folder has the tokenizer.json of another tokenizer.
        OSError: if a file cannot be read.
    """
    if tokenizer.file is None:
        return None
    there = folder / NAME
    if not there.is_file():
        return tokenizer.file.read_bytes()
    try:
        is_same = Tokenizer(there).sha256 == tokenizer.sha256
    except ValueError:
        is_same = False
    if not is_same:
        raise ValueError(
            f"{there}: is not the tokenizer {tokenizer.file}, whose file is kept beside the shards; remove it, or "
            "choose another folder"
        )
    return None


def keep_file(content: bytes | None, folder: Path) -> None:
    """Write what `file_to_keep` gave, whole or not at all."""
    if content is not None:
        with whole_file(folder / NAME) as temporary:
            temporary.write_bytes(content)
