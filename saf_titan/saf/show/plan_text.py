"""Plans as text: a table of the heads, a map of the model, and the difference of two plans.

Legend: T time, H heads of a list.
"""

from __future__ import annotations

from collections.abc import Mapping

from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.fit.pattern import DensePattern
from saf_titan.saf.plan.plan import SkippedHead, StaticPlan


def plan_table(plan: StaticPlan) -> str:
    """Return a summary of the event, then one line for each static head and one for each skipped head."""
    record = plan.record
    lines = [
        f"{len(plan.heads)} static heads at step {plan.step}: selector {plan.selector}, content {plan.content}, "
        f"rate {plan.rate:g}, T_fit {plan.T_fit}",
        f"calibrated on {record.num_sequences} sequences of {record.seq_len} tokens, seed {record.seed}, "
        f"{record.source or 'source unknown'}",
        f"digest {plan.digest}",
        *_matrix_note(plan),
        "",
        f"{'head':<8}{'rank':>5}{'step':>8}{'score':>11}{'fit KL':>9}{'FFT error':>11}"
        f"{'alpha range':>13}{'rho range':>11}{'heavy':>7}{'rough':>8}",
    ]
    for head in plan.heads:
        fft_error = head.pattern.fft_error
        lines.append(
            f"{head.name:<8}{head.rank:>5}{head.step:>8}{head.score:>11.3e}{head.fit_kl:>9.4f}"
            f"{f'{fft_error:.1e}' if fft_error is not None else '-':>11}{pattern_columns(head.pattern.describe())}"
        )
    if plan.skipped:
        lines += ["", "skipped"]
        lines += [f"{s.name:<8} score {s.score:.3e}  {s.reason}" for s in plan.skipped]
    return "\n".join(lines)


def pattern_columns(shape: Mapping[str, float]) -> str:
    """Return the numbers of `CompactPattern.describe` as the last columns of a table; dashes for a pruned head."""
    if not shape:
        return f"{'-':>13}{'-':>11}{'-':>7}{'-':>8}"
    return (
        f"{shape['alpha_range']:>13.1f}{shape['rho_range']:>11.1f}{shape['heavy_columns']:>7.0f}"
        f"{shape['roughness']:>8.3f}"
    )


def plan_map(plan: StaticPlan, calibration: Calibration | None = None) -> str:
    """Return the model as a grid of heads, one row for each layer: `#` static, `x` skipped, `.` ordinary.

    Without the calibration the grid ends at the last layer and the last head that the plan names.
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
    """Return the differences of two plans, one line each; empty for equal plans."""
    lines = []
    for name in ("step", "selector", "content", "rate", "T_fit", "record"):
        before, after = getattr(first, name), getattr(second, name)
        if before != after:
            lines.append(f"{name}: {before} -> {after}")
    ours, theirs = ({(h.layer, h.head): h for h in plan.heads} for plan in (first, second))
    lines += [f"only in the first: {ours[slot].name}" for slot in sorted(ours.keys() - theirs.keys())]
    lines += [f"only in the second: {theirs[slot].name}" for slot in sorted(theirs.keys() - ours.keys())]
    for slot in sorted(ours.keys() & theirs.keys()):
        a, b = ours[slot], theirs[slot]
        changes = [
            f"{name} {getattr(a, name):g} -> {getattr(b, name):g}"
            for name in ("step", "rank", "score", "fit_kl")
            if getattr(a, name) != getattr(b, name)
        ]
        if difference := a.pattern.difference(b.pattern):
            changes.append(difference)
        errors = [a.pattern.fft_error, b.pattern.fft_error]
        if errors[0] != errors[1]:
            # None where the error of mixing by FFT was not certified, as in plans of earlier versions
            changes.append(f"fft_error {' -> '.join('none' if e is None else f'{e:g}' for e in errors)}")
        if changes:
            lines.append(f"{a.name}: {', '.join(changes)}")
    lines += _skipped_changes(first, second)
    if not lines and first.digest != second.digest:
        lines.append(
            "the plans hold the same numbers in other bytes, such as -0.0 for 0.0, or skip heads in another order"
        )
    return lines


def _skipped_changes(first: StaticPlan, second: StaticPlan) -> list[str]:
    """Return the differences of the skipped heads of two plans, one line each."""
    ours, theirs = ({(h.layer, h.head): h for h in plan.skipped} for plan in (first, second))
    lines = [f"skipped only in the first: {ours[slot].name}" for slot in sorted(ours.keys() - theirs.keys())]
    lines += [f"skipped only in the second: {theirs[slot].name}" for slot in sorted(theirs.keys() - ours.keys())]
    for slot in sorted(ours.keys() & theirs.keys()):
        if ours[slot] != theirs[slot]:
            lines.append(f"{ours[slot].name}, skipped in both: {_reason(ours[slot])} -> {_reason(theirs[slot])}")
    return lines


def _reason(head: SkippedHead) -> str:
    return f"score {head.score:g}, {head.reason}"


def _matrix_note(plan: StaticPlan) -> list[str]:
    sizes = [head.pattern.p_TT.nbytes for head in plan.heads if isinstance(head.pattern, DensePattern)]
    if not sizes:
        return []
    return [f"patterns are T x T matrices, {sum(sizes) / 2**20:.1f} MiB; ranges are of the fit to the mean"]
