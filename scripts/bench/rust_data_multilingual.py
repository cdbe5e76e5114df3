"""Makes synthetic multilingual text for rust_data_tokenize.py, with the same bytes at every call.

    python scripts/bench/rust_data_multilingual.py OUT.parquet --mb 50

The text is in no real language. Words are random syllables of seven scripts, drawn by a power law from one lexicon for
each script, so that few words are frequent and new ones keep coming, as in real text. The text resembles real text in
what costs a tokenizer time: bytes a character, lengths of words, marks inside words, and whether spaces separate words
(not in Han and Thai). The share of pairs that merge is not that of real text.
"""

import argparse
import itertools
from typing import NamedTuple

import numpy as np

LEXICON_WORDS = 200_000
DOCUMENT_WORDS = 600


class Script(NamedTuple):
    """A syllable is one of `onsets` and one of `ends`. A word has 1 to `most` syllables.

    `apart` separates words, `stop` ends a sentence.
    """

    onsets: str
    ends: str
    most: int
    apart: str
    stop: str


SCRIPTS = {
    "cyrillic": Script("бвгджзклмнпрстфхцчш", "аеиоуыяюёь", 5, " ", ". "),
    "greek": Script("βγδζθκλμνξπρστφχψ", "αεηιοωάέήίόυ", 5, " ", ". "),
    "arabic": Script("بتثجحخدذرزسشصضطظعغفقكلمنهوي", "اويةنرل", 3, " ", "، "),
    "devanagari": Script("कखगघचछजझटठडढतथदधनपफबभमयरलवशषसह", "ािीुूेैोौं", 3, " ", "। "),
    "han": Script("".join(map(chr, range(0x4E00, 0x5A00))), "的一是不了人我在有他这中大来上国", 1, "", "\uff0c"),
    "hangul": Script("".join(map(chr, range(0xAC00, 0xD7A4, 7))), "이가을는의에로고다", 2, " ", ". "),
    "thai": Script("กขคงจชซญดตถทธนบปผพภมยรลวสหอ", "ะาิีึืุูเแโ", 3, "", " "),
}


def power_law(random: np.random.Generator, size: int, count: int) -> np.ndarray:
    """Draw numbers below `count`; the probability of r is about 1 / (r + 1) / log(count)."""
    return (np.exp(random.random(size) * np.log(count + 1)) - 1).astype(np.int64)


def lexicon(random: np.random.Generator, script: Script) -> list[str]:
    lengths = random.integers(1, script.most + 1, LEXICON_WORDS)
    onsets = np.array(list(script.onsets))[power_law(random, lengths.sum(), len(script.onsets))]
    ends = np.array(list(script.ends))[random.integers(0, len(script.ends), lengths.sum())]
    text = "".join((onsets.astype(object) + ends.astype(object)).tolist())
    borders = 2 * np.concatenate([[0], np.cumsum(lengths)])
    return [text[start:end] for start, end in itertools.pairwise(borders)]


def documents(megabytes: float, seed: int = 0) -> list[str]:
    """Return documents of one script each; the scripts take turns and have equal shares of the bytes."""
    random = np.random.default_rng(seed)
    texts: dict[str, list[str]] = {}
    for name, script in SCRIPTS.items():
        words, made = lexicon(random, script), 0
        while made < 1e6 * megabytes / len(SCRIPTS):
            drawn = [words[rank] for rank in power_law(random, DOCUMENT_WORDS, LEXICON_WORDS)]
            ends = np.full(DOCUMENT_WORDS, script.apart, dtype=object)
            ends[random.random(DOCUMENT_WORDS) < 0.12] = script.stop
            text = "".join([word + end for word, end in zip(drawn, ends.tolist(), strict=True)])
            texts.setdefault(name, []).append(text)
            made += len(text.encode())
    in_turns = sorted((i / len(of_script), text) for of_script in texts.values() for i, text in enumerate(of_script))
    return [text for _, text in in_turns]


def main() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--mb", type=float, default=50)
    args = parser.parse_args()
    texts = documents(args.mb)
    pq.write_table(pa.table({"text": texts}), args.out, compression="zstd", row_group_size=1000)
    print(f"{args.out}: {len(texts)} documents, {sum(len(text.encode()) for text in texts) / 1e6:.1f} MB of text")


if __name__ == "__main__":
    main()
