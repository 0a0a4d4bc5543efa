"""The checkpoints that SLURM's notice wrote, from which a job that is back in the queue goes on."""

from __future__ import annotations

import re
from typing import Any

from gpulayer.fabric.environments import SLURMEnvironment
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import join, list_folder
from gpulayer.fabric.utilities.rank_zero import rank_zero_info

NAME = re.compile(r"(?:.*[/\\])?hpc_ckpt_(\d+)\.ckpt")  # Lightning's


def saved(trainer: Any) -> dict[int, str]:
    """The checkpoints in the Trainer's `default_root_dir`, by their numbers, the newest last."""
    found = (NAME.fullmatch(path) for path in list_folder(trainer.default_root_dir))
    return dict(sorted((int(match[1]), match[0]) for match in found if match))


def next_path(trainer: Any) -> str:
    """Where the next one goes."""
    return join(trainer.default_root_dir, f"hpc_ckpt_{max(saved(trainer), default=0) + 1}.ckpt")


def newest(trainer: Any) -> str:
    """The checkpoint that `ckpt_path="hpc"` means.

    Raises:
        MisconfigurationException: there is none.
    """
    found = saved(trainer)
    if not found:
        raise MisconfigurationException(
            f"`ckpt_path='hpc'`: there is no hpc_ckpt_<number>.ckpt in {trainer.default_root_dir!r}. SLURM's notice "
            "writes one, on SIGUSR1, into the folder that `Trainer(default_root_dir=...)` names."
        )
    return found[max(found)]


def to_go_on_from(trainer: Any, ckpt_path: Any) -> str | None:
    """The checkpoint that a job of SLURM's goes on from, whatever the user gave as `ckpt_path`; None if there is none.

    Without a `ckpt_path` any job takes the newest; with "last", which is compared with it by time, too. In place of a
    path only a job that was put back into the queue takes it: its first start was from that path.
    """
    environment = trainer.strategy.cluster_environment
    if not isinstance(environment, SLURMEnvironment) or not environment.requeues or trainer.fast_dev_run:
        return None
    found = saved(trainer)
    if not found or not (ckpt_path in (None, "last") or environment.restarts()):
        return None
    path = found[max(found)]
    if ckpt_path != "last":
        rank_zero_info("The run goes on from %s, which SLURM's notice wrote.", path)
    return path
