"""Registration of torch operators whose differentiable calls cost little.

`torch.library.custom_op` reads the schema of an operator anew in every differentiable call, in time quadratic in the
number of arguments: with the nine tensors of a pattern, a tenth of the time of mixing one head of 1024 positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def define_operator(name: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register `kernel` as torch.ops.NAMESPACE.NAME for every device, its schema read from its annotations.

    name: "namespace::name". fake: outputs of the right shape for tensors without data.
    """
    schema = torch.library.infer_schema(kernel, mutates_args=())
    torch.library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(name, "CompositeExplicitAutograd", kernel)
    torch.library.register_fake(name, fake)


def define_gradient(name: str, setup_context: Callable[..., None], backward: Callable[..., Any]) -> None:
    """Make a defined operator differentiable; the functions are those of `torch.library.register_autograd`."""
    namespace, _, short_name = name.partition("::")
    operator = getattr(getattr(torch.ops, namespace), short_name).default

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                output = operator(*inputs)
            setup_context(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            return backward(ctx, *gradients)

    def differentiable(*inputs: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
            return Differentiable.apply(*inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*inputs)

    Differentiable.__name__ = Differentiable.__qualname__ = f"Differentiable_{namespace}_{short_name}"
    torch.library.impl(name, "Autograd", differentiable)
