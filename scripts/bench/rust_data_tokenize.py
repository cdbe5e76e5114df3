"""Compare the speed and the ids of the tokenizer with others: fresh processes, interleaved rounds, medians.

    python scripts/bench/rust_data_tokenize.py TEXT.parquet --rounds 5 --threads 1
    python scripts/bench/rust_data_tokenize.py TEXT.parquet --rounds 5 --threads 2 --end-to-end

`cold` is the first pass over the text in a process. `steady` is the last 40 % of the text after the first 60 %, so
new text with a warm cache. Times are wall-clock time, and processor time, which other processes on the machine disturb
less. Slow tokenizers get a tenth of the text. With --end-to-end, the whole process is timed, from parquet to uint16
tokens on disk. Needs gigatoken, fastokens, tokenizers, tiktoken and pyarrow.
"""

import argparse
import hashlib
import json
import mmap
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rust_data_peers import ENCODERS, ids_of

SLOW = ("tokenizers", "tiktoken")
RECYCLED_BYTES = 1 << 30


def recycle_memory() -> None:
    """Touches and frees memory, so that the memory that a run allocates next was just in use."""
    with mmap.mmap(-1, RECYCLED_BYTES) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, RECYCLED_BYTES, 4096):
            memory[start] = 1


def child(parquet: str, name: str, scenario: str, threads: int) -> dict[str, Any]:
    """Makes one timed pass in this process and returns its measurements."""
    import pyarrow.parquet as pq

    texts = [text.encode() for text in pq.read_table(parquet, columns=["text"])["text"].to_pylist()]
    texts = [text for text in texts if text]
    if name in SLOW:
        texts = texts[::10]
    prepare, encode = ENCODERS[name](threads)
    encode(prepare([b"Some words to start with."]))
    border = len(texts) * 6 // 10
    if scenario == "steady":
        encode(prepare(texts[:border]))
        texts = texts[border:]
    prepared = prepare(texts)
    recycle_memory()
    wall, cpu = time.perf_counter(), time.process_time()
    result = encode(prepared)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    ids = ids_of(name, result)
    digest = hashlib.sha256(ids.tobytes()).hexdigest()
    return {"mb": sum(map(len, texts)) / 1e6, "wall": wall, "cpu": cpu, "tokens": len(ids), "digest": digest}


def pipeline(parquet: str, name: str, threads: int) -> dict[str, Any]:
    """Runs one whole process from parquet to tokens, times it from outside, and returns the measurements."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        peers = str(Path(__file__).with_name("rust_data_peers.py"))
        if name == "rust_data":
            options = ["--threads", str(threads), "--val-tokens", "0", "--shard-tokens", "1G", "--quiet"]
            command = [sys.executable, "-m", "rust_data.tokenize", parquet, "--out", str(out), *options]
        else:
            command = [sys.executable, peers, name, parquet, str(out), str(threads)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment(threads))
        wall = time.perf_counter() - wall
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        data = (out / "train_000000.bin").read_bytes()[1024:] if name == "rust_data" else out.read_bytes()
    return {"wall": wall, "cpu": cpu, "tokens": len(data) // 2, "digest": hashlib.sha256(data).hexdigest()}


def environment(threads: int) -> dict[str, str]:
    return dict(os.environ, RAYON_NUM_THREADS=str(threads), OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="true")


def measure(args: argparse.Namespace, name: str, scenario: str) -> dict[str, Any]:
    if scenario == "end to end":
        return pipeline(args.parquet, name, args.threads)
    command = [sys.executable, __file__, args.parquet, "--child", name, scenario, "--threads", str(args.threads)]
    if args.threads == 1:
        command = ["taskset", "-c", "0", *command]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(args.threads))
    return json.loads(done.stdout)


def report(results: dict[tuple[str, str], list[dict[str, Any]]], text_mb: float) -> bool:
    """Prints a table and returns whether all ids agree."""
    print(f"{'scenario':<12}{'engine':<12}{'wall MB/s':>10}{'min':>7}{'max':>7}{'cpu MB/s':>10}{'runs':>6}  ids")
    same = True
    for (scenario, name), runs in results.items():
        speeds = [run.get("mb", text_mb) / run["wall"] for run in runs]
        cpu = statistics.median(run.get("mb", text_mb) / run["cpu"] for run in runs)
        ours = results[(scenario, "rust_data")][0]
        if name in SLOW:
            verdict = "(a tenth of the text)"
        elif all(run["digest"] == ours["digest"] for run in runs):
            verdict = "same"
        else:
            verdict, same = "DIFFERENT", False
        wall = f"{statistics.median(speeds):>10.1f}{min(speeds):>7.0f}{max(speeds):>7.0f}"
        print(f"{scenario:<12}{name:<12}{wall}{cpu:>10.1f}{len(runs):>6}  {verdict}")
    return same


def machine() -> str:
    with Path("/proc/cpuinfo").open() as lines:
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    packages = ("gigatoken", "fastokens", "tokenizers", "tiktoken", "pyarrow", "numpy")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{model}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {versions}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parquet")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--end-to-end", action="store_true")
    parser.add_argument("--engines", nargs="+", default=None)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.parquet, *args.child, args.threads)))
        return 0
    scenarios = ("end to end",) if args.end_to_end else ("cold", "steady")
    names = args.engines or (("rust_data", "gigatoken", "llm.c") if args.end_to_end else tuple(ENCODERS))
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(args.rounds):
        for scenario in scenarios:
            for name in names:
                run = measure(args, name, scenario)
                print(f"{scenario} {name}: {run['wall']:.3f} s, {run['cpu']:.3f} s of CPU", file=sys.stderr)
                results.setdefault((scenario, name), []).append(run)
    import pyarrow.parquet as pq

    texts = pq.read_table(args.parquet, columns=["text"])["text"]
    text_mb = float(np.sum([len(text.encode()) for text in texts.to_pylist()])) / 1e6
    print(f"{machine()}\n{text_mb:.1f} MB of text, {args.threads} threads, load average {os.getloadavg()[0]:.1f}")
    return 0 if report(results, text_mb) else 1


if __name__ == "__main__":
    sys.exit(main())
