"""Optuna's Gaussian process, which begins with the cost model's leaders and learns from what was measured; needs SciPy."""

from __future__ import annotations

import importlib.util
import warnings

import optuna

from search_spaces.errors import UserError
from tuner.optuna_study import proposals
from tuner.strategies import Candidates, Proposals, StrategySettings

STOPS_EARLY = True


def propose(candidates: Candidates, settings: StrategySettings) -> Proposals:
    if importlib.util.find_spec("scipy") is None:
        raise UserError("strategy gp needs scipy, which is not installed; `pip install scipy`, or give another strategy")
    import torch  # late: whoever lists the strategies need not wait for it

    torch.set_num_threads(1)  # the sampler's matrices have a few dozen rows: more threads only wait for each other
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of the sampler, in Optuna 4
        sampler = optuna.samplers.GPSampler(seed=settings.seed, n_startup_trials=1)
    return proposals(candidates, settings, sampler)
