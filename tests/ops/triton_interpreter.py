"""Triton kernels on a CPU: fresh copies of kernel modules that run in Triton's interpreter, its faults corrected.

The interpreter stores bf16 as uint16. Its dot product multiplies those raw bits, and its cast from fp32 truncates
instead of rounding to nearest even; both would pass silently as wrong numbers. Up to Triton 3.6 it also makes loop
bounds of arrays with one element as NumPy no longer does.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.runtime import interpreter


@contextmanager
def interpreted(*names: str) -> Iterator[list[ModuleType]]:
    """Copies of the modules whose kernels run on CPU tensors; the modules themselves stay as they are.

    A module that imports kernels from another one must come after it.
    """
    with pytest.MonkeyPatch.context() as patch, _language_restored():
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", _dot)
        patch.setattr(interpreter, "_convert_float", _convert_float)
        patch.setattr(interpreter, "_patch_lang_tensor", _patch_lang_tensor)
        # the language's own functions were compiled when triton was imported
        for library in (tl, tl.standard):
            for name, function in list(vars(library).items()):
                if isinstance(function, triton.JITFunction):
                    patch.setattr(library, name, interpreter.InterpretedFunction(function.fn))
        copies = []
        for name in names:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.loader is not None
            copy = importlib.util.module_from_spec(spec)
            patch.setitem(sys.modules, name, copy)
            spec.loader.exec_module(copy)
            copies.append(copy)
        yield copies


@contextmanager
def _language_restored() -> Iterator[None]:
    """Undo what the interpreter leaves patched after a call between kernels: nothing would compile any more."""
    owners = (tl, tl.core, tl.math, tl.standard, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base)
    before = [dict(vars(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, attributes in zip(owners, before, strict=True):
            for name, value in dict(vars(owner)).items():
                if name not in attributes:
                    # functions that the interpreter has rewritten once, and keeps, look this one up
                    if name != "interpreter_semantic":
                        delattr(owner, name)
                elif value is not attributes[name]:
                    setattr(owner, name, attributes[name])


def _widen(handle: Any) -> np.ndarray:
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    product = np.matmul(_widen(a), _widen(b), dtype=d.data.dtype)
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


_original_convert_float = interpreter._convert_float


def _convert_float(values: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
    if source != tl.float32 or target != tl.bfloat16:
        return _original_convert_float(values, source, target, rounding)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).reshape(values.shape)


_original_patch_lang_tensor = interpreter._patch_lang_tensor


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    _original_patch_lang_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
