"""The schedules that together promise most, by the cost model and by what was measured so far; the default."""

from __future__ import annotations

from tuner.strategies import Candidates, Proposals, StrategySettings, guided
from tuner.surrogate import Surrogate

STOPS_EARLY = True


def propose(candidates: Candidates, settings: StrategySettings) -> Proposals:
    surrogate = Surrogate(candidates, settings.seed)
    return guided(candidates, settings, surrogate.most_promising, surrogate.tell)
