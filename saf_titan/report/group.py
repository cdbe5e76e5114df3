"""What is compared on a page of several runs."""

from dataclasses import dataclass

from saf_titan.report.run_log import RunLog


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ by their seed at most."""

    name: str
    logs: tuple[RunLog, ...]
    """The runs, from the step on that is to be shown."""
    before: tuple[RunLog, ...] = ()
    """The same runs with the steps that they were branched from, in the same order; empty: as `logs`. From these the
    speed before a freeze is taken."""

    @property
    def with_parents(self) -> tuple[RunLog, ...]:
        return self.before or self.logs
