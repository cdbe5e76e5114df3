"""One file format for plans, calibrations and exports: safetensors with a JSON header and a digest of the content.

The bytes depend on the content alone, so equal content means equal files.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException

from saf_titan.fields.places import require_file_place

_KEY = "saf_titan"


def digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of the header and of the name, dtype, shape and bytes of each tensor, in sorted order."""
    sha = hashlib.sha256(_canonical_json(header).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        sha.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def pack(kind: str, version: int, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of a safetensors file of this kind. The header must be JSON without NaN."""
    envelope = {"kind": kind, "version": version, "digest": digest(header, tensors), "header": header}
    # safetensors refuses two tensors that share memory
    own = {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    return safetensors.torch.save(own, metadata={_KEY: _canonical_json(envelope)})


def unpack(
    data: bytes, kind: str, version: int, *, source: str = "the data"
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the tensors that `pack` was given.

    Raises ValueError, with `source` in the message, if the bytes are damaged, of another kind, of an unknown
    version, or do not match their digest.
    """
    with readable(source, "safetensors file"):
        tensors = safetensors.torch.load(data)
        header_size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + header_size]).get("__metadata__") or {}
    if _KEY not in metadata:
        raise ValueError(f"{source} is a safetensors file, but not one of saf_titan's: a {kind} is needed")
    with readable(source, kind):
        envelope = json.loads(metadata[_KEY])
        found, found_version, expected = envelope["kind"], envelope["version"], envelope["digest"]
        header: dict[str, Any] = envelope["header"]
        actual = digest(header, tensors)
    if found != kind:
        raise ValueError(f"{source} holds a {found}, but a {kind} is needed")
    if found_version != version:
        raise ValueError(
            f"{source} has {kind} version {found_version}, this saf_titan reads version {version}: "
            "use the version that wrote it"
        )
    if expected != actual:
        raise ValueError(f"{source} does not match its digest {str(expected)[:12]}: it was damaged or edited")
    return header, tensors


@contextmanager
def readable(source: str | Path, kind: str) -> Iterator[None]:
    """Turn any exception of a reader into one ValueError that names the damaged or foreign file.

    Pickle, zip, JSON, safetensors and torch raise many types of exceptions for damaged files. OSError is passed on.
    """
    try:
        yield
    except OSError:
        raise
    except (Exception, CheckpointException) as error:  # CheckpointException is not an Exception
        raise ValueError(
            f"{source} is not a readable {kind}: it is damaged, incomplete or of another kind "
            f"({type(error).__name__}: {_first_line(error)})"
        ) from error


def read_file(path: str | Path, kind: str) -> bytes:
    """Return the bytes of a file of this kind. Raises ValueError if `path` does not exist or is a folder."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the file of a {kind}{_example(path)}")
    if not path.exists():
        raise ValueError(f"{path} does not exist: a {kind} is needed{_example(path.parent)}")
    return path.read_bytes()


def write_file(path: str | Path, data: bytes) -> None:
    """Write all of the data or nothing, through a temporary file that is synced and renamed. Replaces an existing file.

    Raises ValueError if no file can be written at `path`; see `require_file_place`.
    """
    path = Path(path)
    require_file_place(path)
    replace_file(path, data)


def replace_file(path: Path, data: bytes) -> None:
    """Do what `write_file` does, for a caller with its own words for an error: raises OSError.

    The temporary file has a name of its own, so that several processes may write the same file at once.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        # not a private temporary file, so that its permissions follow the umask
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _example(folder: Path) -> str:
    """Return a phrase that names the safetensors files of a folder: the user may have meant one of them."""
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    return f"; {folder} has {', '.join(names)}" if names else ""


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def _canonical_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
