"""Plans for tests, with the settings as keyword arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saf_titan.heads.names import Head, head_name
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.plan.decide import DenseSource, make_plan
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.plan.settings import PlanSettings


def plan_of(
    calibration: Calibration,
    *,
    step: int = 0,
    heads: Sequence[Head] = (),
    base_plan: StaticPlan | None = None,
    dense: DenseSource | None = None,
    **settings: Any,
) -> StaticPlan:
    """Make a plan; `settings` are fields of PlanSettings, and `heads` are (layer, head) pairs."""
    chosen = PlanSettings(heads=tuple(head_name(*slot) for slot in heads), **settings)
    return make_plan(calibration, chosen, step=step, base_plan=base_plan, dense=dense)
