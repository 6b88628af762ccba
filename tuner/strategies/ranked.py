"""The schedules that the cost model expects to be fastest, in its order."""

from __future__ import annotations

from tuner.strategies import Candidates, Proposals, StrategySettings, in_order


def propose(candidates: Candidates, settings: StrategySettings) -> Proposals:
    return in_order(candidates.by_estimate(), candidates, settings)
