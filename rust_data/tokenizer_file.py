"""Keeps the tokenizer.json beside the shards that were made with it, so that their ids can always be read as text.

The manifest holds the digest of the tokenizer, not the name of its file. A tokenizer.json in the folder is used only if
it has that digest.
"""

from __future__ import annotations

from pathlib import Path

from rust_data.folder import whole_file
from rust_data.tokenizer import Tokenizer

NAME = "tokenizer.json"


def file_to_keep(tokenizer: Tokenizer, folder: Path) -> bytes | None:
    """Return the content that `keep_file` should write into the folder of a corpus: the tokenizer's file as it is now.

    Return None for a tokenizer without a tokenizer.json (given by name, or as a .tiktoken file), and if the folder
    already has a tokenizer.json with the same digest.

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
            f"{there}: is another tokenizer than {tokenizer.file}, which would be copied to this place; remove it, or "
            "choose another folder"
        )
    return None


def keep_file(content: bytes | None, folder: Path) -> None:
    """Write the result of `file_to_keep` into the folder, completely or not at all."""
    if content is not None:
        with whole_file(folder / NAME) as temporary:
            temporary.write_bytes(content)
