"""Plans as text: a table of the heads, a map of the model, and the difference of two plans.

Legend: T time, H heads of a list.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.plan.plan import StaticHead, StaticPlan

# beyond this lag a trained head's rho should be smooth: what is left is estimation noise
_FAR_LAG = 128


def describe_pattern(alpha_T: Tensor, rho_T: Tensor) -> dict[str, float]:
    """The shape of a compact pattern in numbers.

    alpha_range, rho_range: largest minus smallest, nats.
    heavy_columns: keys with e^4 times the weight of the median key, sinks for the most part.
    roughness: root mean square second difference of rho beyond lag 128, nats; 0 for a smooth decay or a short T.
    """
    far = rho_T[_FAR_LAG:].double()
    return {
        "alpha_range": (alpha_T.max() - alpha_T.min()).item(),
        "rho_range": (rho_T.max() - rho_T.min()).item(),
        "heavy_columns": float((alpha_T > alpha_T.median() + 4).sum()),
        "roughness": far.diff(n=2).square().mean().sqrt().item() if len(far) > 2 else 0.0,
    }


def plan_table(plan: StaticPlan) -> str:
    """One line a static head and one a skipped head, under a summary of the event."""
    record = plan.record
    lines = [
        f"{len(plan.heads)} static heads at step {plan.step}: selector {plan.selector}, content {plan.content}, "
        f"rate {plan.rate:g}, T_fit {plan.T_fit}",
        f"calibrated on {record.num_sequences} sequences of {record.seq_len} tokens, seed {record.seed}, "
        f"{record.source or 'source unknown'}",
        f"digest {plan.digest}",
        *([f"patterns are T x T matrices, {_dense_size(plan)}; ranges are of the fit to the mean"] * plan.is_dense),
        "",
        f"{'head':<8}{'rank':>5}{'step':>8}{'score':>11}{'fit KL':>9}{'FFT error':>11}"
        f"{'alpha range':>13}{'rho range':>11}{'heavy':>7}{'rough':>8}",
    ]
    for head in plan.heads:
        shape = describe_pattern(head.alpha_T, head.rho_T)
        fft_error = f"{head.fft_error:.1e}" if head.fft_error is not None else "-"
        lines.append(
            f"{_name(head):<8}{head.rank:>5}{head.step:>8}{head.score:>11.3e}{head.fit_kl:>9.4f}{fft_error:>11}"
            f"{shape['alpha_range']:>13.1f}{shape['rho_range']:>11.1f}{shape['heavy_columns']:>7.0f}"
            f"{shape['roughness']:>8.3f}"
        )
    if plan.skipped:
        lines += ["", "skipped"]
        lines += [f"L{s.layer}H{s.head:<6} score {s.score:.3e}  {s.reason}" for s in plan.skipped]
    return "\n".join(lines)


def plan_map(plan: StaticPlan, calibration: Calibration | None = None) -> str:
    """The model as a grid of heads, a row a layer: `#` static, `x` skipped, `.` ordinary.

    Without the calibration the grid reaches as far as the plan's heads do.
    """
    static = {(head.layer, head.head) for head in plan.heads}
    skipped = {(head.layer, head.head) for head in plan.skipped}
    if calibration is not None:
        L, H = calibration.num_layers, calibration.num_heads
    else:
        known = static | skipped | {(-1, -1)}
        L, H = (1 + max(column) for column in zip(*known, strict=True))
    lines = [f"{'':>6}" + "".join(f"{head:>3}" for head in range(H))]
    for layer in range(L):
        marks = ("#" if (layer, h) in static else "x" if (layer, h) in skipped else "." for h in range(H))
        lines.append(f"{f'L{layer}':>6}" + "".join(f"{mark:>3}" for mark in marks))
    return "\n".join(lines)


def plan_diff(first: StaticPlan, second: StaticPlan) -> list[str]:
    """What changed from one plan to another, a line each; empty for equal plans."""
    lines = []
    for name in ("step", "selector", "content", "rate", "T_fit", "record"):
        before, after = getattr(first, name), getattr(second, name)
        if before != after:
            lines.append(f"{name}: {before} -> {after}")
    ours, theirs = ({(h.layer, h.head): h for h in plan.heads} for plan in (first, second))
    lines += [f"only in the first: {_name(ours[slot])}" for slot in sorted(ours.keys() - theirs.keys())]
    lines += [f"only in the second: {_name(theirs[slot])}" for slot in sorted(theirs.keys() - ours.keys())]
    for slot in sorted(ours.keys() & theirs.keys()):
        a, b = ours[slot], theirs[slot]
        changes = [
            f"{name} {getattr(a, name):g} -> {getattr(b, name):g}"
            for name in ("step", "rank", "score", "fit_kl")
            if getattr(a, name) != getattr(b, name)
        ]
        if a.alpha_T.shape != b.alpha_T.shape:
            changes.append(f"pattern of {len(a.alpha_T)} -> {len(b.alpha_T)} positions")
        elif not (torch.equal(a.alpha_T, b.alpha_T) and torch.equal(a.rho_T, b.rho_T)):
            distance = max((a.alpha_T - b.alpha_T).abs().max().item(), (a.rho_T - b.rho_T).abs().max().item())
            changes.append(f"pattern differs by up to {distance:.2e} nat")
        elif a.p_TT is not None and b.p_TT is not None and not torch.equal(a.p_TT, b.p_TT):
            changes.append(f"pattern differs by up to {(a.p_TT - b.p_TT).abs().max().item():.2e}")
        if changes:
            lines.append(f"{_name(a)}: {', '.join(changes)}")
    if not lines and first.digest != second.digest:
        lines.append("the skipped heads differ")
    return lines


def _dense_size(plan: StaticPlan) -> str:
    return f"{sum(head.p_TT.nbytes for head in plan.heads if head.p_TT is not None) / 2**20:.1f} MiB"


def _name(head: StaticHead) -> str:
    return f"L{head.layer}H{head.head}"
