"""Register torch operators whose differentiable calls have little overhead.

`torch.library.custom_op` reads the schema of an operator again in every differentiable call, in time quadratic in the
number of arguments. For the ten tensors of a pattern this takes a tenth of the time of mixing one head at T = 1024.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def define_operator(name: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register `kernel` as torch.ops.NAMESPACE.NAME for every device, with the schema of its annotations.

    name: "namespace::name". fake: returns outputs of the right shape for tensors without data.
    """
    schema = torch.library.infer_schema(kernel, mutates_args=())

    def in_own_dtypes(*inputs: Any) -> Any:
        # autocast also acts inside kernels written in Python, and would round their matrix products to 16 bits
        device = next(x.device.type for x in inputs if isinstance(x, Tensor))
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return kernel(*inputs)
        with torch.autocast(device, enabled=False):
            return kernel(*inputs)

    torch.library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(name, "CompositeExplicitAutograd", in_own_dtypes)
    torch.library.register_fake(name, fake)


def define_gradient(name: str, setup_context: Callable[..., None], backward: Callable[..., Any]) -> None:
    """Make a defined operator differentiable in reverse mode, more than once if `backward` uses such operators.

    The functions are those of `torch.library.register_autograd`. A call with forward-mode tangents raises
    NotImplementedError.
    """
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
        _refuse_tangents(name, inputs)
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
            return Differentiable.apply(*inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*inputs)

    Differentiable.__name__ = Differentiable.__qualname__ = f"Differentiable_{namespace}_{short_name}"
    torch.library.impl(name, "Autograd", differentiable)


def define_no_gradient(name: str, remedy: str) -> None:
    """Make the derivative of a defined operator an error: NotImplementedError with the remedy, raised in `backward`."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(f"{name} has no derivative; {remedy}")

    define_gradient(name, setup_context, backward)


def _refuse_tangents(name: str, inputs: tuple[Any, ...]) -> None:
    # outside of forward mode no input can have a tangent
    if forward_ad._current_level < 0:
        return
    for x in inputs:
        if isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None:
            raise NotImplementedError(
                f"{name} has no forward-mode derivatives; use reverse mode (torch.autograd.grad, vjp), or the naive "
                "functions of saf_titan.ops, which have both"
            )
