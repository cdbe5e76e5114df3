"""The engines that rust_data_tokenize.py compares, each run in its own process.

In memory: `ENCODERS[name](threads)` returns two functions. The first, which is not timed, converts texts to the form
that the engine takes; the second encodes them. `ids_of` converts the result to one array.
End to end: `PIPELINES[name](parquet, out, threads)` writes uint16 tokens, with one end-of-text token a document.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

EOT = 50256
SEPARATOR = b"<|endoftext|>"
ASSETS = Path(__file__).parents[2] / "rust_data" / "assets" / "gpt2"

Functions = tuple[Callable[[list[bytes]], Any], Callable[[Any], Any]]


def printable_alphabet() -> dict[int, str]:
    """Return GPT-2's printable character for each byte, in the order of the ids of single bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def tokenizer_json() -> Path:
    """Write GPT-2 as a tokenizer.json without special tokens, from the bundled merges, and return its path."""
    merges = (ASSETS / "vocab.bpe").read_text().splitlines()[1:]
    tokens = [*printable_alphabet().values(), *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": merges,
    }
    root: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    root |= {"normalizer": None, "pre_tokenizer": byte_level, "post_processor": None}
    root |= {"decoder": byte_level, "model": model}
    path = Path(tempfile.mkdtemp()) / "tokenizer.json"
    path.write_text(json.dumps(root))
    return path


def tiktoken_encoding() -> Any:
    """Return tiktoken's GPT-2 encoding, made from the bundled merges."""
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str

    of_char = {c: b for b, c in printable_alphabet().items()}
    merges = (ASSETS / "vocab.bpe").read_text().splitlines()[1:]
    tokens = [bytes([b]) for b in printable_alphabet()]
    tokens += [bytes(of_char[c] for c in merge if c != " ") for merge in merges]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": EOT})


def _rust_data(threads: int) -> Functions:
    from rust_data import Tokenizer

    tokenizer = Tokenizer("gpt2")
    return list, lambda texts: tokenizer.encode_batch(texts, threads)[0]


def _gigatoken(threads: int) -> Functions:
    import gigatoken

    tokenizer = gigatoken.Tokenizer(str(tokenizer_json()))

    # its fastest input is one buffer that it splits at a separator (empty documents are left out)
    def source(texts: list[bytes]) -> Any:
        return gigatoken.BytesSource([SEPARATOR.join(texts)], separator=SEPARATOR)

    return source, tokenizer.encode_batch


def _strings(texts: list[bytes]) -> list[str]:
    return [text.decode() for text in texts]


def _fastokens(threads: int) -> Functions:
    import fastokens

    tokenizer = fastokens.Tokenizer.from_file(str(tokenizer_json()))
    return _strings, lambda texts: tokenizer.encode_batch_flat(texts)[0]


def _tokenizers(threads: int) -> Functions:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_json()))
    return _strings, tokenizer.encode_batch_fast


def _tiktoken(threads: int) -> Functions:
    encoding = tiktoken_encoding()
    return _strings, lambda texts: encoding.encode_ordinary_batch(texts, num_threads=threads)


ENCODERS = {
    "rust_data": _rust_data,
    "gigatoken": _gigatoken,
    "fastokens": _fastokens,
    "tokenizers": _tokenizers,
    "tiktoken": _tiktoken,
}


def ids_of(name: str, result: Any) -> np.ndarray:
    """Return the result of an encoder as one array."""
    if name == "gigatoken":
        import awkward

        return awkward.to_numpy(awkward.flatten(result)).astype(np.uint16)
    if name == "tokenizers":
        return np.concatenate([np.array(encoding.ids, dtype=np.uint16) for encoding in result])
    if name == "tiktoken":
        return np.concatenate([np.array(ids, dtype=np.uint16) for ids in result])
    if name == "fastokens":
        return np.frombuffer(result, dtype=np.uint32).astype(np.uint16)
    return np.asarray(result)


def _pipeline_gigatoken(parquet: str, out: str, threads: int) -> None:
    import awkward
    import gigatoken

    tokenizer = gigatoken.Tokenizer(str(tokenizer_json()))
    ids = tokenizer.encode_files(gigatoken.ParquetFileSource([parquet], column="text"))
    counts = awkward.to_numpy(awkward.num(ids))
    flat = awkward.to_numpy(awkward.flatten(ids))
    tokens = np.full(len(flat) + len(counts), EOT, dtype=np.uint16)
    is_text = np.ones(len(tokens), dtype=bool)
    is_text[np.cumsum(counts + 1) - 1] = False
    tokens[is_text] = flat
    tokens.tofile(out)


def _llmc_document(text: str) -> np.ndarray:
    global _encoding
    if "_encoding" not in globals():
        _encoding = tiktoken_encoding()
    return np.array([*_encoding.encode_ordinary(text), EOT], dtype=np.uint16)


def _pipeline_llmc(parquet: str, out: str, threads: int) -> None:
    """Tokenize like llm.c's fineweb.py, with a pool of processes over documents."""
    import multiprocessing

    import pyarrow.parquet as pq

    texts = (text for batch in pq.ParquetFile(parquet).iter_batches(columns=["text"]) for text in batch[0].to_pylist())
    with multiprocessing.Pool(threads) as pool, Path(out).open("wb") as file:
        for tokens in pool.imap(_llmc_document, texts, chunksize=16):
            file.write(tokens.tobytes())


PIPELINES = {"gigatoken": _pipeline_gigatoken, "llm.c": _pipeline_llmc}

if __name__ == "__main__":
    PIPELINES[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
