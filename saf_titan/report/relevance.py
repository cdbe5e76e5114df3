"""Attention on relevant tokens, for runs on generated sequences: over steps, over thresholds, and as DTAP maps.

Legend: N rows of the log, L layers, H query heads, X cells of an axis of a DTAP map, Q thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from saf_titan.heads.names import head_name
from saf_titan.report import markup
from saf_titan.report.drawing import BLUE, GREY, ORANGE, STYLE, WIDTH, mark_freezes, to_svg
from saf_titan.report.format import count
from saf_titan.report.rows import RelevanceRow
from saf_titan.report.run_log import RunLog

_MAX_LINES = 24
"""Heads that are drawn; all of them are in the table."""
_RELEVANT = {
    "mqar": "the value that stands behind the key that is asked for",
    "class_tokens": "the tokens that only sequences of this class have",
}


def relevance_sections(log: RunLog) -> Iterator[str]:
    """Yield the sections about attention on the tokens from which answers follow; nothing for a run without them."""
    sets: dict[tuple[int, int], list[RelevanceRow]] = {}
    for row in log.relevances:
        if _shape(row) is not None:
            sets.setdefault((row.length, row.pairs), []).append(row)
    if not sets:
        return
    kind = log.config.data.kind if log.config else ""
    relevant = f" ({_RELEVANT[kind]})" if kind in _RELEVANT else ""
    yield markup.heading("Attention on relevant tokens")
    yield markup.paragraph(
        f"Each question of a generated sequence has relevant tokens, from which its answer follows{relevant}. The mass "
        "is the attention that the question gives to them; a question is attended to with confidence if the mass is at "
        "least 0.5. Attention confidence (AC) is the share of such questions, ACMC that of questions which also give "
        "the right answer a probability of at least 0.5. Static heads count with their patterns."
    )
    for (length, pairs), rows in sorted(sets.items()):
        shape = _shape(rows[-1])
        # rows of a model of another shape cannot be drawn on the same axes
        rows = [row for row in rows if _shape(row) == shape]
        if len(sets) > 1:
            yield markup.heading(f"{length:,} tokens{f', {pairs} pairs' if pairs else ''}", 3)
        yield from _set(log, rows)


def _set(log: RunLog, rows: Sequence[RelevanceRow]) -> Iterator[str]:
    last, moments = rows[-1], _moments(rows)
    confidence_NL = np.array([_layer_confidence(row) for row in rows])
    # the most confident layer at the end; of equally confident layers, the one with more attention
    layer = max(
        range(confidence_NL.shape[1]),
        key=lambda number: (np.nan_to_num(confidence_NL[-1, number], nan=-1), _curve(last, number).sum()),
    )
    yield markup.side_by_side(
        (
            markup.figure(
                confidence_figure(log, rows, confidence_NL, layer),
                "AC of the mean over the heads of a layer; thin: each layer, thick: the layer where it is highest at "
                f"the end; dashed: ACMC of that layer. Measured on {count(last.questions, 'question')}.",
                numbers=markup.table(
                    ("step", "when", *(f"layer {number}" for number in range(confidence_NL.shape[1]))),
                    (
                        (f"{row.step:,}", _when(row), *(_share(share) for share in of_layers))
                        for row, of_layers in zip(rows, confidence_NL.tolist(), strict=True)
                    ),
                    text_columns=("when",),
                ),
            ),
            markup.figure(
                mass_figure(log, rows),
                f"Mean mass of single heads: thin, up to {_MAX_LINES} heads with the largest at the end; thick, the "
                "largest.",
                numbers=_heads_table(rows),
            ),
            markup.figure(
                threshold_figure(moments, layer),
                f"Layer {layer}: share of questions whose mass is at least the threshold, from the counts of its maps.",
                numbers=markup.table(
                    ("threshold", *(name for name, _ in moments)),
                    (
                        (f"{threshold:.1f}", *map(_share, shares))
                        for threshold, *shares in zip(
                            np.linspace(0, 1, _cells(last)[layer].shape[0] + 1)[:-1].tolist(),
                            *(_curve(row, layer).tolist() for _, row in moments),
                            strict=True,
                        )
                    ),
                ),
            ),
        )
    )
    yield markup.heading(f"DTAP maps of layer {layer}", 3)
    yield markup.paragraph(
        "Where the questions lie: to the right, more of the attention is on relevant tokens; upwards, the right answer "
        "is more probable. Brighter is more questions; the upper right corner is good."
    )
    yield markup.gallery((name, ((dtap_figure(row, layer), _dtap_words(row, layer)),)) for name, row in moments)


def confidence_figure(log: RunLog, rows: Sequence[RelevanceRow], confidence_NL: NDArray[np.float64], layer: int) -> str:
    """Draw AC against the step, a thin line for each layer, a thick one for `layer`, and its ACMC."""
    steps_N = [row.step for row in rows]
    both_N = [_both(row, layer) for row in rows]
    with mpl.rc_context(STYLE):
        figure, axes = _axes("share of questions")
        others = [number for number in range(confidence_NL.shape[1]) if number != layer]
        axes.plot(steps_N, confidence_NL[:, others], color=BLUE, alpha=0.45, linewidth=0.8, marker=_marker(rows))
        axes.plot(
            steps_N,
            confidence_NL[:, layer],
            color=BLUE,
            linewidth=1.8,
            label=f"AC, layer {layer}",
            marker=_marker(rows),
        )
        axes.plot(steps_N, both_N, color=ORANGE, linewidth=1.4, linestyle="--", label="ACMC", marker=_marker(rows))
        return _over_steps(log, figure, axes)


def mass_figure(log: RunLog, rows: Sequence[RelevanceRow]) -> str:
    """Draw the mean mass against the step, a line for each of the heads that have most of it at the end."""
    mass_NH = np.array([np.concatenate([np.asarray(of_heads) for of_heads in row.mass]) for row in rows])
    order = np.argsort(-np.nan_to_num(mass_NH[-1], nan=-1), kind="stable")
    order = order[np.isfinite(mass_NH[-1][order])][:_MAX_LINES]
    num_heads = len(rows[-1].mass[0])
    with mpl.rc_context(STYLE):
        figure, axes = _axes("mean attention mass")
        steps_N = [row.step for row in rows]
        for place, head in reversed(list(enumerate(order.tolist()))):
            is_first = place == 0
            axes.plot(
                steps_N,
                mass_NH[:, head],
                color=BLUE,
                alpha=1.0 if is_first else 0.45,
                linewidth=1.8 if is_first else 0.8,
                label=head_name(*divmod(head, num_heads)) if is_first else "",
                marker=_marker(rows),
            )
        return _over_steps(log, figure, axes)


def threshold_figure(moments: Sequence[tuple[str, RelevanceRow]], layer: int) -> str:
    """Draw AC against its threshold, a line for each moment."""
    looks = ({"color": GREY}, {"color": ORANGE}, {"color": ORANGE, "linestyle": "--"}, {"color": BLUE})
    with mpl.rc_context(STYLE):
        figure, axes = _axes("share of questions", lines_below=len(moments))
        for number, (name, row) in enumerate(moments):
            look = looks[-1] if number == len(moments) - 1 else looks[number]
            curve_Q = np.append(_curve(row, layer), 0.0)
            axes.step(np.linspace(0, 1, len(curve_Q)), curve_Q, where="post", linewidth=1.5, label=name, **look)
        axes.set_xlabel("threshold of the mass")
        axes.set_xlim(0, 1)
        # a curve may run through any corner
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=1)
        return to_svg(figure)


def dtap_figure(row: RelevanceRow, layer: int) -> str:
    """Draw a DTAP map; the picture holds no text."""
    cells_XX = _cells(row)[layer]
    share_XX = cells_XX / max(cells_XX.sum(), 1)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.2, 2.2))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        # the first axis of the counts is the mass, which goes to the right
        axes.imshow(share_XX.T, norm=PowerNorm(0.5, vmin=0, vmax=1), cmap="viridis", origin="lower")
        return to_svg(figure)


def _axes(label: str, *, lines_below: int = 0) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 3.3 + 0.2 * lines_below), layout="constrained")
    axes = figure.subplots()
    axes.set_ylabel(label)
    axes.set_ylim(-0.02, 1.02)
    return figure, axes


def _over_steps(log: RunLog, figure: Figure, axes: Axes) -> str:
    mark_freezes(axes, [freeze.step for freeze in log.freezes])
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.legend(loc="best")
    return to_svg(figure)


def _marker(rows: Sequence[RelevanceRow]) -> str:
    """Return a marker that makes a single measurement visible, which has no line."""
    return "o" if len({row.step for row in rows}) == 1 else "None"


def _shape(row: RelevanceRow) -> tuple[int, int, int] | None:
    """Return the numbers of layers, heads and cells of an axis; None if the tables of a row do not fit together."""
    heads = {len(of_heads) for of_heads in (*row.mass, *row.confidence)}
    cells = {len(of_layer) for of_layer in row.dtap}
    if len(heads) != 1 or len(cells) != 1 or not len(row.mass) == len(row.confidence) == len(row.dtap):
        return None
    num_cells = round(next(iter(cells)) ** 0.5)
    counts = np.asarray(row.dtap, dtype=np.float64)
    are_counts = bool(((counts >= 0) & (counts < 2**53)).all())
    if not num_cells or num_cells**2 not in cells or not are_counts or not counts.sum() > 0:
        return None
    return len(row.mass), next(iter(heads)), num_cells


def _cells(row: RelevanceRow) -> NDArray[np.float64]:
    """The counts of all layers, (L, X, X)."""
    counts = np.asarray(row.dtap, dtype=np.float64)
    size = round(counts.shape[1] ** 0.5)
    return counts.reshape(len(counts), size, size)


def _curve(row: RelevanceRow, layer: int) -> NDArray[np.float64]:
    """The share of questions whose mass is at least 0, 1 / X, 2 / X, ...: (X,)."""
    count_X = _cells(row)[layer].sum(1)
    shares_X: NDArray[np.float64] = count_X[::-1].cumsum()[::-1] / max(count_X.sum(), 1)
    return shares_X


def _layer_confidence(row: RelevanceRow) -> NDArray[np.float64]:
    """AC of the mean over heads of each layer, (L,); nan for a layer without heads."""
    cells_LXX = _cells(row)
    confident_L = cells_LXX[:, cells_LXX.shape[1] // 2 :].sum((1, 2))
    total_L = cells_LXX.sum((1, 2))
    return np.divide(confident_L, total_L, out=np.full_like(total_L, np.nan), where=total_L > 0)


def _both(row: RelevanceRow, layer: int) -> float:
    """Return ACMC of a layer."""
    cells_XX = _cells(row)[layer]
    middle = len(cells_XX) // 2
    return float(cells_XX[middle:, middle:].sum() / max(cells_XX.sum(), 1))


def _moments(rows: Sequence[RelevanceRow]) -> list[tuple[str, RelevanceRow]]:
    """Return the first and the last measurement, and those around the first freeze, each with its name."""
    chosen = {"start": rows[0]}
    for phase, name in (("before_freeze", "before the freeze"), ("after_freeze", "after the freeze")):
        found = next((row for row in rows if row.phase == phase), None)
        if found is not None:
            chosen[name] = found
    if rows[-1] not in chosen.values():
        chosen["end"] = rows[-1]
    return [(f"{name} (step {row.step:,})", row) for name, row in chosen.items()]


def _heads_table(rows: Sequence[RelevanceRow]) -> str:
    first, last = rows[0], rows[-1]
    return markup.table(
        ("head", "mass at the start", "mass at the end", "AC at the start", "AC at the end"),
        (
            (head_name(layer, head), *(_share(table[layer][head]) for table in tables))
            for tables in ((first.mass, last.mass, first.confidence, last.confidence),)
            for layer in range(len(last.mass))
            for head in range(len(last.mass[layer]))
        ),
        text_columns=("head",),
    )


def _when(row: RelevanceRow) -> str:
    return row.phase.replace("_", " ")


def _share(share: float) -> str:
    return "" if np.isnan(share) else f"{share:.3f}"


def _dtap_words(row: RelevanceRow, layer: int) -> str:
    return f"AC {_layer_confidence(row)[layer]:.2f}, ACMC {_both(row, layer):.2f}"
