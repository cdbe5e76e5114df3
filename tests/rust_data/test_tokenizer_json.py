"""A `tokenizer.json` gives the ids of Hugging Face `tokenizers`, or is refused with the name of its part."""

import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import models, pre_tokenizers, trainers

from rust_data.tokenize import tokenize
from rust_data.tokenizer import _CL100K_PATTERN, _O200K_PATTERN, GPT2_PATTERN, Tokenizer
from tests.rust_data.conftest import read_all

EOT = "<|endoftext|>"
ASSETS = Path(__file__).parents[2] / "rust_data" / "assets"
BLOOM_PATTERN = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = [
    BLOOM_PATTERN,
    LLAMA3_PATTERN,
    _CL100K_PATTERN,
    _O200K_PATTERN,
    GPT2_PATTERN,
    r"\p{L}+",
    r"\w+|[^\w\s]+",
    r"\s",
    r"\p{N}{1,3}",
    r"[a-z]+ [a-z]+",
    r"",
    r"x*",
    r"(?<=a).",
    r"\s+(?!\S)",
    r"[\u4e00-\u9fff]+",
    r"^.",
    r".$",
    r"(?i)the|ss",
    r"a{,2}",
]
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
WORDS = (
    [
        "the",
        " the",
        "hello",
        " world",
        "Hello,",
        " a",
        "a",
        "aa",
        "x",
        "xx",
        "it's",
        "'ll",
        "I'VE",
        "ss",
        "\u00df",
        "THE",
    ]
    + [
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "\u00a0",
        "\u3000",
        "1",
        "12",
        "2024",
        "\u00b2",
        "\u0663",
        "\U00011de3",
    ]
    + [
        ".",
        ", ",
        "...",
        "!?",
        "\u2026",
        "-",
        "--",
        "()",
        "|",
        "[",
        "def f():",
        "\u00e9",
        "\u4e2d\u6587",
        "\u043c\u0438\u0440",
    ]
    + ["\U0001f600", "\u0301", EOT, "<pad>", "<x>", "<x y>", "y>", "ab", "abc", "b c", "</s>"]
)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """A small byte-level BPE tokenizer, trained on a few words."""
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[EOT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    draw = random.Random(0)
    tokenizer.train_from_iterator(["".join(draw.choices(WORDS, k=40)) for _ in range(100)], trainer)
    return json.loads(tokenizer.to_str())


def reference(root: dict[str, Any]) -> HfTokenizer:
    """The tokenizer as `tokenizers` runs it, with special tokens as plain text."""
    tokenizer = HfTokenizer.from_str(json.dumps(root))
    tokenizer.encode_special_tokens = True
    return tokenizer


def load(folder: Path, root: dict[str, Any]) -> Tokenizer:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(root))
    return Tokenizer(path)


def expected_ids(tokenizer: HfTokenizer, text: str) -> list[int] | None:
    """The ids of `tokenizers`; None where it panics, as it does over some added tokens that overlap."""
    try:
        return tokenizer.encode(text, add_special_tokens=False).ids
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


def assert_same_ids(ours: Tokenizer, theirs: HfTokenizer, texts: list[str], what: object) -> None:
    ids, offsets = ours.encode_batch(texts, threads=1)
    for i, text in enumerate(texts):
        expected = expected_ids(theirs, text)
        assert expected is None or ids[offsets[i] : offsets[i + 1]].tolist() == expected, (what, text)


def added(content: str, id: int, special: bool = False, **flags: bool) -> dict[str, Any]:
    names = ("single_word", "lstrip", "rstrip", "normalized")
    return {"id": id, "content": content, "special": special} | {name: flags.get(name, False) for name in names}


def split(pattern: str, behavior: str = "Isolated", invert: bool = False, kind: str = "Regex") -> dict[str, Any]:
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(use_regex: bool = False, add_prefix_space: bool = False) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def random_text(draw: random.Random) -> str:
    return "".join(draw.choices(WORDS, k=draw.randrange(30)))


def random_pre_tokenizer(draw: random.Random) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    for _ in range(draw.choice([0, 1, 1, 1, 2, 3])):
        kind = draw.random()
        if kind < 0.6:
            parts.append(split(draw.choice(PATTERNS), draw.choice(BEHAVIORS), draw.random() < 0.2))
        elif kind < 0.75:
            parts.append(split(draw.choice([" ", "a", "--", "\n", "."]), draw.choice(BEHAVIORS), kind="String"))
        elif kind < 0.9:
            parts.append({"type": "Digits", "individual_digits": draw.random() < 0.5})
        elif kind < 0.94:
            parts.append({"type": "Whitespace"})
        elif kind < 0.97:
            parts.append({"type": "Punctuation", "behavior": "Isolated"})
        else:
            parts.append(byte_level())
    parts.append(byte_level(use_regex=draw.random() < 0.4, add_prefix_space=draw.random() < 0.03))
    if len(parts) > 2 and draw.random() < 0.3:
        parts[:2] = [sequence(*parts[:2])]
    return parts[0] if len(parts) == 1 else sequence(*parts)


def random_added(draw: random.Random, root: dict[str, Any]) -> list[dict[str, Any]]:
    tokens = list(root["added_tokens"])
    vocab = root["model"]["vocab"]
    new_id = len(vocab)
    contents = ["<x>", "<x y>", "y>", "  ", "   ", "the", "ab", "abc", "b c", "a", " ", "\u00e9", "<pad>", "\n\n"]
    for content in draw.sample(contents, draw.choice([0, 0, 1, 2, 3, 4])):
        id = vocab.get(content, new_id)
        new_id += id == new_id
        flags = {name: draw.random() < 0.15 for name in ("lstrip", "rstrip")}
        flags |= {"normalized": draw.random() < 0.5, "single_word": draw.random() < 0.03}
        wrong = draw.random() < 0.02
        tokens.append(added(content, id + 3 * wrong, draw.random() < 0.3, **flags))
    return tokens


def random_tokenizer(draw: random.Random, plain: dict[str, Any]) -> dict[str, Any]:
    root = {**plain, "model": {**plain["model"]}}
    root["pre_tokenizer"] = random_pre_tokenizer(draw)
    root["added_tokens"] = random_added(draw, root)
    root["normalizer"] = draw.choices([None, {"type": "NFC"}, {"type": "Lowercase"}], [30, 1, 1])[0]
    decoders = [None, {"type": "Fuse"}, {"type": "BPEDecoder", "suffix": "</w>"}, byte_level(use_regex=True)]
    root["decoder"] = draw.choice(decoders)
    changes: list[dict[str, Any]] = [
        {"ignore_merges": True},
        {"dropout": 0.0},
        {"dropout": 0.5},
        {"unk_token": "a"},
        {"unk_token": EOT, "fuse_unk": True},
        {"byte_fallback": True},
        {"continuing_subword_prefix": "##"},
        {"end_of_word_suffix": "</w>"},
        {"continuing_subword_prefix": "", "end_of_word_suffix": ""},
    ]
    if draw.random() < 0.5:
        root["model"] |= draw.choice(changes)
    if draw.random() < 0.03:
        root["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    return root


# a refusal names the part with one of these words
PARTS = (
    "normalizer|pre_tokenizer|dropout|continuing_subword_prefix|end_of_word_suffix|truncation|padding|added token"
    "|ignore_merges|merge|pattern"
)


def test_random_tokenizers_agree_or_are_refused(tmp_path: Path, plain: dict[str, Any]) -> None:
    draw = random.Random(12)
    loaded = 0
    # many texts for each, because every tokenizer takes 64 MB for its words, which is slow where memory is scattered
    for number in range(250):
        root = random_tokenizer(draw, plain)
        texts = [random_text(draw) for _ in range(60)]
        what = (number, root["pre_tokenizer"], root["added_tokens"], {**root["model"], "vocab": 0, "merges": 0})
        try:
            ours, refusal = load(tmp_path, root), ""
        except ValueError as error:
            refusal = str(error)
        if refusal:
            assert re.search(rf"tokenizer\.json: .*({PARTS})", refusal), (refusal, what)
            continue
        loaded += 1
        assert_same_ids(ours, reference(root), texts, what)
    assert loaded > 125


def test_text_between_matches_is_kept(tmp_path: Path, plain: dict[str, Any]) -> None:
    root = plain | {"pre_tokenizer": sequence(split(BLOOM_PATTERN), byte_level())}
    text = "Hello, world. One\ntwo!"
    ours = load(tmp_path, root)
    assert ours.encode(text).tolist() == expected_ids(reference(root), text)
    assert ours.decode(ours.encode(text)) == text


def test_added_tokens_that_are_not_special(tmp_path: Path, plain: dict[str, Any]) -> None:
    size = len(plain["model"]["vocab"])
    spaces = [added(" " * (9 - i), size + i, normalized=True) for i in range(8)]
    root = plain | {"added_tokens": plain["added_tokens"] + spaces}
    text = "def f():\n    return  1\n         x"
    ours = load(tmp_path, root)
    assert ours.encode(text).tolist() == expected_ids(reference(root), text)
    assert size + 5 in ours.encode(text)
    assert ours.decode(ours.encode(text)) == text
    assert ours.vocab_size == size + 8


def test_code_points_at_the_borders_of_classes(tmp_path: Path, plain: dict[str, Any]) -> None:
    ranges = json.loads((ASSETS / "unicode_classes.json").read_text())["ranges"]
    numbers_of_unicode_17 = [*range(0x11DDF, 0x11DEB), *range(0x16FF3, 0x16FF8)]
    borders = {c + step for first, last, _ in ranges for c in (first, last) for step in (-1, 0, 1)}
    points = [chr(c) for c in sorted(borders.union(numbers_of_unicode_17)) if c >= 0 and not 0xD800 <= c < 0xE000]
    texts = ["".join(f"a{c} 1{c}" for c in points[i : i + 64]) for i in range(0, len(points), 64)]
    for parts in (
        [{"type": "Digits", "individual_digits": False}, byte_level(use_regex=True)],
        # where pieces are dropped, each wrong class shows
        [split(r"\p{N}|\p{L}|\s", "Removed"), byte_level()],
        [{"type": "Digits", "individual_digits": True}, split(r"\P{N}", "Removed"), byte_level()],
    ):
        root = plain | {"pre_tokenizer": sequence(*parts)}
        assert_same_ids(load(tmp_path, root), reference(root), texts, parts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": {"type": "NFC"}}, 'normalizer "NFC" is not supported'),
        ({"pre_tokenizer": None}, "pre_tokenizer null is not supported"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, 'pre_tokenizer .*"Whitespace".* is not supported'),
        ({"pre_tokenizer": byte_level(add_prefix_space=True)}, "pre_tokenizer .*add_prefix_space.* is not supported"),
        ({"pre_tokenizer": sequence(split("(", "Isolated"), byte_level())}, r'pattern "\(": '),
        ({"padding": {"strategy": "BatchLongest"}}, "padding is not supported: set it to null"),
        ({"added_tokens": []}, "added_tokens: none is the end-of-text token"),
        ({"added_tokens": [added(EOT, 0)]}, 'added token "<|endoftext|>" ends documents, .*set its "special" to true'),
        ({"added_tokens": [added(EOT, 0, True), added("<x>", 900)]}, 'added token "<x>" has id 900, tokenizers gives'),
        ({"added_tokens": [added(EOT, 0, True)] * 2}, 'added token ".*" is there twice'),
    ],
)
def test_what_would_change_ids_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, plain: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json: " + message.replace("|", r"\|")):
        load(tmp_path, plain | changes)


def test_special_tokens_are_never_made_from_text(tmp_path: Path, plain: dict[str, Any]) -> None:
    # the whole document is one pretoken, and ignore_merges would look it up
    root = copy.deepcopy(plain) | {"pre_tokenizer": byte_level()}
    root["model"]["ignore_merges"] = True
    with pytest.raises(ValueError, match="ignore_merges is not supported where the special token"):
        load(tmp_path, root)
    root["pre_tokenizer"] = byte_level(use_regex=True)
    assert_same_ids(load(tmp_path, root), reference(root), [EOT, f"a{EOT}b"], "GPT-2 pattern")


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        sequence(split("[a-z]+ [a-z]+"), byte_level()),
        sequence(split(LLAMA3_PATTERN), byte_level()),
        sequence({"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)),
    ],
    ids=["words with spaces", "llama 3", "digits"],
)
@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_documents_larger_than_a_batch(
    suffix: str, pre_tokenizer: dict[str, Any], tmp_path: Path, plain: dict[str, Any]
) -> None:
    root = plain | {"pre_tokenizer": pre_tokenizer}
    load(tmp_path, root)
    text = "the hello a ab world 12 xx, the a\nhello " * 28_000
    path = tmp_path / f"long.{suffix}"
    path.write_text(text if suffix == "txt" else json.dumps({"text": text}) + "\n")
    tokenize([str(path)], tmp_path / "out", tokenizer=str(tmp_path / "tokenizer.json"), threads=1)
    ids = read_all(tmp_path / "out")
    expected = expected_ids(reference(root), text)
    assert ids[:-1].tolist() == expected


def test_a_document_that_can_neither_be_cut_nor_read_whole(tmp_path: Path, plain: dict[str, Any]) -> None:
    load(tmp_path, plain | {"pre_tokenizer": sequence(split("[a-z]+ [a-z]+"), byte_level())})
    text = "the hello a ab world " * 420_000
    for name, content in (("a.txt", text), ("a.jsonl", json.dumps({"text": text}))):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=rf"{name}.*more than 8 MiB.*split it into shorter documents"):
            tokenize([str(tmp_path / name)], tmp_path / f"{name}.out", tokenizer=str(tmp_path / "tokenizer.json"))


def test_the_digest_tells_tokenizers_with_the_same_ranks_apart(tmp_path: Path, plain: dict[str, Any]) -> None:
    size = len(plain["model"]["vocab"])
    tokens = plain["added_tokens"]
    changes: list[dict[str, Any]] = [
        {},
        {"pre_tokenizer": sequence(split(LLAMA3_PATTERN), byte_level())},
        {"pre_tokenizer": sequence(split(LLAMA3_PATTERN, "Removed"), byte_level())},
        {"pre_tokenizer": sequence(split(LLAMA3_PATTERN), byte_level(use_regex=True))},
        {"added_tokens": [*tokens, added("<x>", size)]},
        {"added_tokens": [*tokens, added("<x>", size, lstrip=True)]},
        {"added_tokens": [*tokens, added("<x>", size, True)]},
        {"added_tokens": [*tokens, added("</s>", size, True), added("<x>", size + 1, True)]},
        {"model": plain["model"] | {"merges": plain["model"]["merges"][:-1]}},
    ]
    digests = [load(tmp_path, plain | change).sha256 for change in changes]
    assert len(set(digests)) == len(digests)
    # fields that never change ids are not in it
    same = [{"decoder": None}, {"model": plain["model"] | {"unk_token": "a"}}]
    assert {load(tmp_path, plain | change).sha256 for change in same} == {digests[0]}
