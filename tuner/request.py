"""What a search was asked for, and the words that it is stored under: two runs with the same words were the same search."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from search_spaces.hardware import Hardware
from search_spaces.problem import Problem

if TYPE_CHECKING:  # it needs numpy, which `tuner best` does not wait for
    from search_spaces.space import Space

DEFAULT_MODEL = "hierarchy"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asked for."""

    problem: Problem
    hardware: Hardware
    space: Space
    model: str = DEFAULT_MODEL
    strategy: str = "auto"
    trials: int = 64  # schedules measured at most; without the GPU, compiled at most
    budget_seconds: float | None = None
    regret: float = 0.0  # the search ends where the estimated one is under this; 0 for never
    seed: int = 0
    anew: bool = False  # measure even what is stored

    @property
    def text(self) -> str:
        """JSON. Of the space it has the name, the families and how many schedules there are, which tells most changes of a space apart."""
        plain = {"model": self.model, "strategy": self.strategy, "trials": self.trials, "seed": self.seed}
        return json.dumps(
            {
                "problem": asdict(self.problem),
                "gpu": self.hardware.name,
                "space": self.space.name,
                "families": list(self.space.axes),
                "schedules": self.space.size,
                "budget_seconds": self.budget_seconds,
                "regret": self.regret,
                **plain,
            }
        )
