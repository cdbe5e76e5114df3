"""A group of runs, which is compared with other groups on one page."""

from dataclasses import dataclass

from saf_titan.report.run_log import RunLog


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ in their seeds only, or a single run."""

    name: str
    logs: tuple[RunLog, ...]
    """The runs, without the steps that the page does not show."""
    before: tuple[RunLog, ...] = ()
    """The same runs, in the same order, with the steps of the runs that they were branched from; empty if `logs` have
    all steps. The speed before a freeze is measured on these."""

    @property
    def with_parents(self) -> tuple[RunLog, ...]:
        return self.before or self.logs
