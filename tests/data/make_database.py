"""Writes a database with one of everything, as `schema_<version>.db` beside this file.

Run from the root, once when a schema is released: PYTHONPATH=.:tests python tests/data/make_database.py
The file then stays as it is, so that later versions are tested on what this one really wrote.
"""

from dataclasses import replace
from pathlib import Path

from store_samples import COMPILED, CRASHED, ENVIRONMENT, NO_GPU, PROBLEM, SCHEDULE, finalist, record, timed

from db.faults import SCHEMA_VERSION
from db.store import open_store
from search_spaces.problem import Problem

PATH = Path(__file__).parent / f"schema_{SCHEMA_VERSION}.db"


def main() -> None:
    other = replace(SCHEDULE, cta_n=128)
    small = Problem(m=64, n=4096, k=4096)
    with open_store(PATH) as store:
        run_id = store.begin_run(ENVIRONMENT, '{"problem": "4096x4096x4096"}')
        first = store.add(run_id, record(timed(190.0)))
        second = store.add(run_id, record(timed(191.0), schedule=other))
        store.add(run_id, record(CRASHED, schedule=replace(SCHEDULE, stages=4)))
        store.add_finalists(run_id, [finalist(first, 1, 1.05, tied=False), finalist(second, 2, 1.045, tied=True)])
        store.finish_run(run_id, "finished")
        run_id = store.begin_run(NO_GPU, '{"problem": "64x4096x4096"}')
        store.add(run_id, record(COMPILED, problem=small, environment=NO_GPU, protocol="compile"))
        store.finish_run(run_id, "interrupted")
    print(f"wrote {PATH}: {PROBLEM.shape} measured, {small.shape} compiled")


if __name__ == "__main__":
    main()
