"""Steps of datatrove pipelines: documents of any of its readers to our shards, on any of its executors.

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
        folder: Of all parts, on a file system that all tasks share.
        tokenizer: Name or file, as `rust_data.Tokenizer` takes it.
        shard_tokens: Tokens a shard of a part, below 2**31.
        threads: Threads a task.

    Raises:
        ValueError: for settings that no task could use.
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
        # before tasks are queued for it
        Tokenizer(tokenizer)
        # texts: an executor records its steps as JSON and sends them to its tasks
        self.folder, self.tokenizer = str(folder), str(tokenizer)
        self.shard_tokens, self.threads = shard_tokens, num_threads(threads)

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> None:
        """Write the documents of one task.

        Raises:
            ValueError: for a document that cannot be encoded, with its id.
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
    """The only step of a pipeline of one task: joins the parts to the corpus that one job makes. The parts stay.

    Args:
        parts: The folder of `TokenizeToShards`.
        out: The folder of the corpus.
        tokenizer: That of the parts.
        shard_tokens: Tokens a shard, below 2**31.
        val_tokens: The leading whole documents that reach this many tokens are the val split, as in `tokenize`.

    Raises:
        ValueError: for settings that cannot be used.
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
            ValueError: as `rust_data.parts.join` does, and if there are several tasks.
        """
        if world_size != 1:
            raise ValueError(f"JoinShards: {world_size} tasks; the parts are joined by one (tasks=1)")
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
