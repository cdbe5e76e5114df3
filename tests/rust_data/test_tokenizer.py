"""The tokenizer gives tiktoken's ids on every text, and its API keeps its promises."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from rust_data.tokenizer import _CL100K_PATTERN, _O200K_PATTERN, BYTES, Tokenizer
from tests.rust_data.conftest import EOT, tokenizer_json

MAX_EXAMPLES = int(os.environ.get("RUST_DATA_MAX_EXAMPLES", "200"))

ADVERSARIAL = [
    "",
    " ",
    "  ",
    "\n\n\n",
    " \n a\n\n b \t\tc  ",
    "<|endoftext|>",
    "a<|endoftext|>b",
    "it's we'll I've you're he'd I'm can't 'S 'LL ''s '' 's",
    "x's's'lls 'll'llama're'read",
    "'" * 70 + "s",
    "\u00a0\u2003\u3000 \u2028\u0085x",
    "a\u00a0b \u00a0c\u3000\u3000d",
    "1234567890 \u00b2\u00bd\u0663\u4e09\u2167",
    "\u0301\u0301e\u0301 cafe\u0301",
    "\U0001f44d\U0001f3fd\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u4e2d\u6587\u5b57\u7b26 \u65e5\u672c\u8a9e\u306e\u6587\u7ae0 \ud55c\uad6d\uc5b4",
    "\u088f\u1c89\U00016d40 new letters of Unicode 16 and 17",
    "\x00\x01\x7f\ufffd\ufeff\U0010ffff",
    "a" * 1000 + " " * 1000 + "b",
    "=" * 300 + "\n" + "-" * 299,
    "word" * 60 + " " + "\u00e9" * 200,
    "x" * 15 + " " + "y" * 16 + " " + "z" * 14 + "\u00e9",
]


@pytest.mark.parametrize("text", ADVERSARIAL, ids=range(len(ADVERSARIAL)))
def test_adversarial_texts(text: str, gpt2: Tokenizer, tiktoken_gpt2: Any) -> None:
    assert gpt2.encode(text).tolist() == tiktoken_gpt2.encode_ordinary(text)


def test_long_runs_are_exact(gpt2: Tokenizer, tiktoken_gpt2: Any) -> None:
    # quadratic merging would take minutes here; tiktoken is compared on a length it can take
    for letter in ("a", "\u00e9", " ", "\u4e2d"):
        assert gpt2.encode(letter * 20_000).tolist() == tiktoken_gpt2.encode_ordinary(letter * 20_000)
    assert gpt2.decode(gpt2.encode("a" * 1_000_000)) == "a" * 1_000_000


def test_every_code_point(gpt2: Tokenizer, tiktoken_gpt2: Any) -> None:
    # each code point between letters, so that a wrong class moves a border
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = ["".join(f"a{c} 1{c}" for c in points[i : i + 512]) for i in range(0, len(points), 512)]
    ids, offsets = gpt2.encode_batch(texts)
    expected = tiktoken_gpt2.encode_ordinary_batch(texts, num_threads=1)
    for i, reference in enumerate(expected):
        assert ids[offsets[i] : offsets[i + 1]].tolist() == reference, f"block {i}"


fragments = st.one_of(
    st.sampled_from(list("aeinorst ETAX0129'.,-\n\t")),
    st.sampled_from(["'s", "'ll", "  ", "\u00a0", "\u3000", "\u4e2d", "\u00e9", "\u0301", "\U0001f600"]),
    st.characters(exclude_categories=["Cs"]),
)
unicode_text = st.lists(fragments).map("".join)


@settings(max_examples=MAX_EXAMPLES, deadline=None, derandomize=True)
@given(st.lists(unicode_text, max_size=5))
def test_random_texts_agree_and_round_trip(gpt2: Tokenizer, tiktoken_gpt2: Any, texts: list[str]) -> None:
    ids, offsets = gpt2.encode_batch(texts, threads=1)
    for i, text in enumerate(texts):
        part = ids[offsets[i] : offsets[i + 1]]
        assert part.tolist() == tiktoken_gpt2.encode_ordinary(text)
        assert gpt2.decode(part) == text


def test_sample_corpus(gpt2: Tokenizer, tiktoken_gpt2: Any, sample_texts: list[str]) -> None:
    ids, offsets = gpt2.encode_batch(sample_texts, threads=3)
    assert ids.dtype == np.uint16
    assert offsets.dtype == np.int64
    for i, expected in enumerate(tiktoken_gpt2.encode_ordinary_batch(sample_texts, num_threads=1)):
        assert ids[offsets[i] : offsets[i + 1]].tolist() == expected


def test_lone_surrogates_become_replacement_characters(gpt2: Tokenizer, tiktoken_gpt2: Any) -> None:
    text = "a\ud800b \udfff\ud83d\ude00"
    assert gpt2.encode(text).tolist() == tiktoken_gpt2.encode_ordinary(text)


def test_bytes_are_texts_too(gpt2: Tokenizer, sample_texts: list[str]) -> None:
    encoded = [text.encode() for text in sample_texts[:50]]
    np.testing.assert_array_equal(gpt2.encode_batch(encoded)[0], gpt2.encode_batch(sample_texts[:50])[0])


def test_properties(gpt2: Tokenizer) -> None:
    assert (gpt2.name, gpt2.vocab_size, gpt2.eot, gpt2.splitter) == ("gpt2", 50257, EOT, "native")
    assert gpt2.sha256 == "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"


def test_decode(gpt2: Tokenizer) -> None:
    assert gpt2.decode([31373, 995, EOT]) == "hello world<|endoftext|>"
    assert gpt2.decode(np.zeros(0, dtype=np.uint16)) == ""
    half = gpt2.encode("\U0001f600")[:1]
    assert gpt2.decode(half) == "\ufffd"
    with pytest.raises(ValueError, match="id 50257 is not in gpt2"):
        gpt2.decode([1, 50257])
    with pytest.raises(ValueError, match="id -1"):
        gpt2.decode([-1])


def test_wrong_arguments(gpt2: Tokenizer) -> None:
    with pytest.raises(ValueError, match="use encode"):
        gpt2.encode_batch("text")
    with pytest.raises(TypeError):
        gpt2.encode_batch([5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="text 1: invalid utf-8 sequence of 1 bytes from index 2"):
        gpt2.encode_batch([b"good", b"ab\xff"])
    with pytest.raises(ValueError, match="'gpt5': expected one of gpt2, "):
        Tokenizer("gpt5")
    for ids in ([1.7], [float("nan")], [[1, 2]], 5):
        with pytest.raises(ValueError, match="ids must be whole numbers in one dimension"):
            gpt2.decode(ids)  # type: ignore[arg-type]
    assert gpt2.decode([]) == ""


def test_goes_to_other_processes_by_name(tmp_path: Path, gpt2: Tokenizer) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_json(gpt2)))
    for tokenizer in (gpt2, Tokenizer(path)):
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert (copy.name, copy.sha256) == (tokenizer.name, tokenizer.sha256)


def test_works_in_a_forked_child(gpt2: Tokenizer) -> None:
    texts = ["some words of text " * 5000] * 40
    expected = gpt2.encode_batch(texts, threads=4)[0]
    child = os.fork()
    if child == 0:
        same = np.array_equal(gpt2.encode_batch(texts, threads=4)[0], expected)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("pattern", [_CL100K_PATTERN, _O200K_PATTERN], ids=["cl100k", "o200k"])
def test_other_patterns_take_the_regex_path(pattern: str, gpt2: Tokenizer, sample_texts: list[str]) -> None:
    from rust_data import _native

    tokens = gpt2.native.tokens()
    native = _native.Tokenizer.from_tokens(tokens, "mixed", pattern, EOT)
    assert native.splitter == "regex"
    ranks = {token: rank for rank, token in enumerate(tokens) if token}
    encoding = tiktoken.Encoding("mixed", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": EOT})
    texts = ADVERSARIAL[:-4] + sample_texts[:60]
    ids, offsets = native.encode_batch(texts, 1)
    for i, text in enumerate(texts):
        assert ids[offsets[i] : offsets[i + 1]].tolist() == encoding.encode_ordinary(text), repr(text)


def test_tokenizer_json(tmp_path: Path, gpt2: Tokenizer, sample_texts: list[str]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_json(gpt2)))
    loaded = Tokenizer(path)
    assert (loaded.vocab_size, loaded.eot, loaded.splitter, loaded.sha256) == (50257, EOT, "native", gpt2.sha256)
    texts = sample_texts[:100] + ADVERSARIAL
    np.testing.assert_array_equal(loaded.encode_batch(texts)[0], gpt2.encode_batch(texts)[0])


def test_tokenizer_json_that_is_more_than_bytes_and_merges(tmp_path: Path, gpt2: Tokenizer) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_json(gpt2, normalizer={"type": "NFC"})))
    with pytest.raises(ValueError, match=r"tokenizer.json: normalizer \"NFC\" is not supported"):
        Tokenizer(path)
    for bad in (2**31, 2**32 + 5, -1, "5"):
        path.write_text(json.dumps(tokenizer_json(gpt2, added_tokens=[{"id": bad, "content": "<|endoftext|>"}])))
        with pytest.raises(
            ValueError, match=r"tokenizer\.json: bad id .* of \"<\|endoftext\|>\": must be below 16777216"
        ):
            Tokenizer(path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokenizer(path)


def test_tiktoken_file(tmp_path: Path, gpt2: Tokenizer) -> None:
    import base64

    tokens = gpt2.native.tokens()
    path = tmp_path / "r50k_base.tiktoken"
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens) if token]
    path.write_text("".join(lines))
    loaded = Tokenizer(path)
    assert (loaded.name, loaded.sha256, loaded.splitter) == ("r50k_base", gpt2.sha256, "native")
    path.write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match="holds no pattern for others"):
        Tokenizer(path)


def test_bytes_are_their_own_ids() -> None:
    tokenizer = Tokenizer("bytes")
    assert (tokenizer.name, tokenizer.vocab_size, tokenizer.eot) == ("bytes", 257, 256)
    text = "caf\u00e9\n  <|endoftext|> \U0001f600"
    assert tokenizer.encode(text).tolist() == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    reference = tokenizers.Tokenizer.from_file(str(BYTES))
    assert reference.decode(list(text.encode()), skip_special_tokens=False) == text
