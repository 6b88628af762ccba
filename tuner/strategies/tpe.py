"""Optuna's tree-structured Parzen estimator, which begins with the cost model's leaders and learns from what was measured."""

from __future__ import annotations

import warnings

import optuna

from tuner.optuna_study import proposals
from tuner.strategies import Candidates, Proposals, StrategySettings

STOPS_EARLY = True


def propose(candidates: Candidates, settings: StrategySettings) -> Proposals:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of constant_liar, in Optuna 4
        sampler = optuna.samplers.TPESampler(seed=settings.seed, n_startup_trials=1, constant_liar=True)
    return proposals(candidates, settings, sampler)
