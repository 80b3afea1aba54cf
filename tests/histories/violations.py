"""Violations that checkers of acknowledged records and publications have found."""

from dataclasses import dataclass, field


@dataclass
class Violations:
    lost: list[str] = field(default_factory=list)
    """Acknowledged items that are missing."""
    doubled: list[str] = field(default_factory=list)
    """Items that are there twice."""
    others: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """All violations."""
        return [*self.lost, *self.doubled, *self.others]

    def check(self) -> None:
        """Raise AssertionError with the violations, if there are any."""
        assert not self.broken, "\n".join(("promises were broken:", *self.broken[:50]))
