"""Every schedule that can run, the most promising first, so that a run that is cut short has seen the best of them."""

from __future__ import annotations

from tuner.strategies import Candidates, Proposals, StrategySettings, in_order

WANTS_ALL = True  # unless a limit is named, every schedule is to be tried


def propose(candidates: Candidates, settings: StrategySettings) -> Proposals:
    return in_order(candidates.by_estimate(), candidates, settings)
