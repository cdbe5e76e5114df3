"""Steps of datatrove pipelines that write our shards; they work with all readers and executors of datatrove.

    LocalPipelineExecutor([JsonlReader("texts"), TokenizeToShards("corpus.parts")], tasks=4).run()
    LocalPipelineExecutor([JoinShards("corpus.parts", "corpus")], tasks=1).run()

Each task writes a part, and one task joins the parts. The corpus is the same for every number of tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise ImportError("rust_data.pipeline needs datatrove: pip install 'saf_titan[datatrove]'") from error

from rust_data.parts import PartWriter, join
from rust_data.sizes import check_range
from rust_data.threads import num_threads
from rust_data.tokenizer import Tokenizer


class TokenizeToShards(PipelineStep):
    """The last step of a pipeline: each task tokenizes its documents into the part <folder>/part-<rank>-of-<tasks>.

    A task that runs again replaces its part.

    Args:
        folder: The folder of all parts, on a file system that all tasks share.
        tokenizer: A name or file, as for `rust_data.Tokenizer`.
        shard_tokens: Tokens a shard of a part, below 2**31.
        threads: Number of threads a task.

    Raises:
        ValueError: for settings out of range, or if there is no such tokenizer.
    """

    name = "rust_data: tokenize to shards"
    type = "TOKENIZER"

    def __init__(
        self,
        folder: str | Path,
        tokenizer: str | Path = "gpt2",
        *,
        shard_tokens: int = 100_000_000,
        threads: int = 1,
    ) -> None:
        super().__init__()
        check_range(1, 2**31 - 1, shard_tokens=shard_tokens)
        # load it once now, so that a wrong name is an error before tasks are queued
        Tokenizer(tokenizer)
        # stored as strings, because an executor writes its steps as JSON and sends them to its tasks
        self.folder, self.tokenizer = str(folder), str(tokenizer)
        self.shard_tokens, self.threads = shard_tokens, num_threads(threads)

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> None:
        """Write the documents of one task.

        Raises:
            ValueError: if a document cannot be encoded; the message has its id.
            OSError: if a file cannot be written.
        """
        tokenizer = Tokenizer(self.tokenizer)
        part = PartWriter(
            Path(self.folder), (rank, world_size), tokenizer, shard_tokens=self.shard_tokens, threads=self.threads
        )
        try:
            for document in data or ():
                with self.track_time():
                    part.add(document.text, file=str(document.metadata.get("file_path", "")), name=document.id)
            with self.track_time():
                part.finish()
        finally:
            part.close()
        self.stat_update("documents", value=part.num_documents, unit="task")
        self.stat_update("tokens", value=part.num_tokens, unit="task")


class JoinShards(PipelineStep):
    """The only step of a pipeline of one task: joins the parts to the corpus that one job would write. The parts stay.

    Args:
        parts: The folder that `TokenizeToShards` wrote.
        out: The folder of the corpus.
        tokenizer: The tokenizer of the parts.
        shard_tokens: Tokens a shard, below 2**31.
        val_tokens: The leading whole documents that reach this many tokens are the val split, as in `tokenize`.

    Raises:
        ValueError: for settings out of range, or if there is no such tokenizer.
    """

    name = "rust_data: join shards"
    type = "TOKENIZER"

    def __init__(
        self,
        parts: str | Path,
        out: str | Path,
        tokenizer: str | Path = "gpt2",
        *,
        shard_tokens: int = 100_000_000,
        val_tokens: int = 0,
    ) -> None:
        super().__init__()
        check_range(1, 2**31 - 1, shard_tokens=shard_tokens)
        check_range(0, 2**63 - 1, val_tokens=val_tokens)
        Tokenizer(tokenizer)
        self.parts, self.out, self.tokenizer = str(parts), str(out), str(tokenizer)
        self.shard_tokens, self.val_tokens = shard_tokens, val_tokens

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Join the parts.

        Raises:
            ValueError: if the pipeline has several tasks, and in the cases of `rust_data.parts.join`.
        """
        if world_size != 1:
            raise ValueError(f"JoinShards: {world_size} tasks; run it in a pipeline of one task (tasks=1)")
        manifest = join(
            Path(self.out),
            Path(self.parts),
            Tokenizer(self.tokenizer),
            shard_tokens=self.shard_tokens,
            val_tokens=self.val_tokens,
        )
        for name, split in manifest["splits"].items():
            self.stat_update(f"{name}_documents", value=split["documents"], unit="task")
            self.stat_update(f"{name}_tokens", value=split["tokens"], unit="task")
