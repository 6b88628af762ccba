"""A seeded random order that knows nothing of the cost model: what every other strategy has to beat."""

from __future__ import annotations

import numpy as np

from tuner.strategies import Candidates, Proposals, StrategySettings, in_order


def propose(candidates: Candidates, settings: StrategySettings) -> Proposals:
    order = np.random.default_rng(settings.seed).permutation(len(candidates.table))
    return in_order(order, candidates, settings)
