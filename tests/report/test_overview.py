"""The first sentences say what was frozen, when, why those heads, what it cost and what it gained."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from saf_titan.report.event import FreezeEvent, read_events
from saf_titan.report.overview import overview
from saf_titan.report.run_log import RunLog, read_run
from saf_titan.saf.plan.plan import SkippedHead
from tests.report.runs import freeze_row, plain_rows, session_row, train_row, undone_row, write_frozen_run, write_run


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    return read_run(write_frozen_run(tmp_path_factory.mktemp("runs") / "run"))


def with_plan(event: FreezeEvent, **changes: Any) -> FreezeEvent:
    assert event.plan is not None
    return dataclasses.replace(event, plan=dataclasses.replace(event.plan, **changes))


def test_a_frozen_run(frozen: RunLog) -> None:
    assert list(overview(frozen, read_events(frozen))) == [
        "After step 60, 4 of the 8 attention heads (50%) were frozen (made static). Until then, the attention of "
        "these heads was computed from the text; since then, it is replaced by a fixed pattern, fitted to their mean "
        "attention. These heads were chosen because their attention differed least from one text to another "
        "(selector variance, measured on 4 held-out sequences of 40 tokens).",
        "Cost: replacing their attention changed the validation loss from 3.7500 (perplexity 42.52) to 3.8125 "
        "(perplexity 45.26), which is +6.45% in perplexity, and the freeze took 1.88 s.",
        "Gain: steps became faster, from 0.5 s to 0.4 s (medians), which is 1.25 times the speed (spread 1.25 to "
        "1.25).",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"selector": "random"}, "because they were drawn at random, as a control (selector random"),
        ({"selector": "mine"}, 'because their score by the selector "mine" was lowest'),
        ({"content": "uniform"}, "replaced by equal attention to all earlier tokens, as a control"),
        ({"content": "distance"}, "replaced by a fixed pattern that depends on the distance alone, as a control"),
        ({"content": "mine"}, 'replaced by a fixed pattern (content "mine")'),
    ],
)
def test_other_selectors_and_contents(frozen: RunLog, changes: dict[str, str], words: str) -> None:
    (event,) = read_events(frozen)
    assert words in next(overview(frozen, [with_plan(event, **changes)]))


def test_fewer_heads_than_asked_for(frozen: RunLog) -> None:
    events = read_events(frozen)
    assert frozen.config is not None
    more = dataclasses.replace(frozen.config, saf=dataclasses.replace(frozen.config.saf, rate=0.75))
    texts = list(overview(dataclasses.replace(frozen, config=more), events))
    assert texts[1] == "The run asked for 6 static heads (75%) and got 4."
    head = SkippedHead(layer=1, head=0, score=1.0, fit_kl=None, reason="why")
    skipped = [with_plan(events[0], skipped=(head,))]
    texts = list(overview(dataclasses.replace(frozen, config=more), skipped))
    assert texts[1].endswith('got 4: 1 candidate was skipped, for the reasons in the table "Skipped candidates".')
    ramp = dataclasses.replace(more, saf=dataclasses.replace(more.saf, schedule="ramp"))
    assert len(list(overview(dataclasses.replace(frozen, config=ramp), events))) == 3


def test_a_change_within_the_spread_is_told_with_its_medians(tmp_path: Path) -> None:
    rows = [
        session_row("start", 0),
        *(train_row(step, step_seconds=0.4 + 0.2 * (step % 2)) for step in range(5, 61, 5)),
        freeze_row(60, 1),
        *(train_row(step, step_seconds=0.4 + 0.1 * (step % 2)) for step in range(65, 121, 5)),
    ]
    log = read_run(write_run(tmp_path / "run", rows))
    gain = list(overview(log, read_events(log)))[-1]
    assert gain.startswith("Gain: not measurable in this run. A step took 0.")
    assert "(medians), but the step times spread so widely" in gain


def test_slower_steps_are_no_gain(tmp_path: Path) -> None:
    rows = [
        session_row("start", 0),
        *(train_row(step) for step in range(5, 61, 5)),
        freeze_row(60, 1),
        *(train_row(step, step_seconds=0.625) for step in range(65, 121, 5)),
    ]
    log = read_run(write_run(tmp_path / "run", rows))
    first, *_, gain = overview(log, read_events(log))
    # neither plan nor statistics
    assert first == "After step 60, 1 attention head was frozen (made static)."
    assert gain.startswith(
        "No gain: steps became slower, from 0.5 s to 0.625 s (medians), which is 0.80 times the speed"
    )


def test_several_freezes_and_undone_ones(frozen: RunLog) -> None:
    (event,) = read_events(frozen)
    later = dataclasses.replace(event, freeze=dataclasses.replace(event.freeze, step=90, heads=6))
    rows = [dataclasses.replace(row, step=90) for row in frozen.validations if "freeze" in row.phase]
    log = dataclasses.replace(
        frozen,
        freezes=[event.freeze, later.freeze],
        validations=[*frozen.validations, *rows],
        undone=read_run(write_run(frozen.folder.parent / "undone", [undone_row(3, 1), undone_row(5, 1)])).undone,
    )
    what, cost, gain, undone = overview(log, [event, later])
    assert what.startswith("In 2 freezes, after steps 60 to 90, 6 of the 8 attention heads (75%) were frozen ")
    assert "the changes of the validation loss at the freezes add up to +0.1250, which is +13.31% in perplexity" in cost
    assert "the freezes took 3.75 s" in cost
    assert "is not measurable in this run, because 10 logged intervals before and 5 after the freeze" in gain
    assert undone.startswith("2 freezes were tried and undone")


@pytest.mark.parametrize(
    ("steps", "words", "sentence"),
    [
        (120, (), "No attention head was frozen in this run."),
        (55, ("--saf.enable=true",), "No attention head has been frozen yet: the first freeze is due after step 60."),
        (120, ("--saf.enable=true",), "No attention head was frozen, although freezing was switched on."),
    ],
)
def test_a_run_without_static_heads(tmp_path: Path, steps: int, words: tuple[str, ...], sentence: str) -> None:
    log = read_run(write_run(tmp_path / "run", plain_rows(steps), *words))
    assert list(overview(log, [])) == [sentence]
