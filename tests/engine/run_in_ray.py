"""Runs an engine in an actor of Ray, in the place of ``run_engine``: frameworks of batches and of training do so."""

from __future__ import annotations

import json
import os
import pathlib
import sys


def main() -> None:
    import ray

    job = json.loads(pathlib.Path(sys.argv[1]).read_text())
    # The actor is a new process, with what this one was told.
    told = {name: value for name, value in os.environ.items() if name.startswith(("VLLM_", "POSENC_", "OMP_"))}
    told["PYTHONPATH"] = str(pathlib.Path(__file__).parents[2])
    ray.init(num_cpus=1, include_dashboard=False, runtime_env={"env_vars": told})
    try:
        actor = ray.remote(num_cpus=1)(Engine).remote()
        ray.get(actor.run.remote(job))
    finally:
        ray.shutdown()


class Engine:
    """The actor."""

    def run(self, job: dict[str, object]) -> None:
        from tests.engine.run_engine import run_job

        run_job(job)


if __name__ == "__main__":
    main()
