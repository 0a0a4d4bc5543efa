"""Several processes, each with a device of its own, in one group of torch.distributed."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from datetime import timedelta
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from gpulayer.fabric import collectives
from gpulayer.fabric.accelerators import Accelerator
from gpulayer.fabric.checkpoint.io import CheckpointIO
from gpulayer.fabric.environments import ClusterEnvironment
from gpulayer.fabric.peers import Failure, Peers, RankError
from gpulayer.fabric.precision import Precision
from gpulayer.fabric.strategies.processes import Processes
from gpulayer.fabric.strategies.strategy import Strategy
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_only

BACKENDS = {"cuda": "nccl"}  # of other devices: gloo


class ParallelStrategy(Strategy):
    """The group of processes; the subclasses say what they share.

    Args:
        accelerator: the kind of device. Left out, as the devices below and the environment: the Trainer's choice.
        parallel_devices: the devices of this machine.
        cluster_environment: what starts the processes, and tells each its place.
        checkpoint_io: how checkpoints are stored.
        precision: the number formats.
        process_group_backend: "nccl", "gloo" ...; default: "nccl" on CUDA, else "gloo".
        timeout: how long a collective operation waits for the other processes.
        start_method: how this machine's processes are started where nothing else does: "popen" runs the program again;
            "spawn", "fork" and "forkserver" call the Trainer's method in new processes.
    """

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = timedelta(minutes=30),
        start_method: str = "popen",
    ) -> None:
        super().__init__(accelerator, precision, checkpoint_io)
        self.parallel_devices = parallel_devices or []
        if cluster_environment is not None:
            self.cluster_environment = cluster_environment
        self.num_nodes = 1
        self.process_group_backend = process_group_backend
        self.timeout = timeout
        self.start_method = start_method
        self.processes: Processes | None = None
        self.host_group: Any = None  # for what lies on the host, which then waits for no GPU; None: the group of all
        if start_method not in ("popen", "spawn", "fork", "forkserver"):
            raise MisconfigurationException(
                f"`start_method={start_method!r}`: choose 'popen', 'spawn', 'fork' or 'forkserver'."
            )

    # -- where -------------------------------------------------------------------------------------------------------

    def take_place(
        self, accelerator: Accelerator, devices: list[torch.device], num_nodes: int, environment: ClusterEnvironment
    ) -> None:
        super().take_place(accelerator, devices, num_nodes, environment)
        self.parallel_devices = self.parallel_devices or devices
        self.num_nodes = num_nodes
        environment = self.environment
        environment.set_world_size(num_nodes * self.num_processes)  # where it is told from outside, they stay
        environment.set_global_rank(environment.node_rank() * self.num_processes + environment.local_rank())
        environment.validate_settings(num_devices=self.num_processes, num_nodes=num_nodes)
        rank_zero_only.rank = self.global_rank

    @property
    def environment(self) -> ClusterEnvironment:
        """What tells this process its place."""
        assert self.cluster_environment is not None, "the strategy belongs to no Trainer or Fabric yet"
        return self.cluster_environment

    @property
    def num_processes(self) -> int:
        """The processes of this machine."""
        return len(self.parallel_devices)

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[self.local_rank]

    @property
    def world_size(self) -> int:
        return self.environment.world_size()

    @property
    def global_rank(self) -> int:
        return self.environment.global_rank()

    @property
    def local_rank(self) -> int:
        return self.environment.local_rank()

    @property
    def node_rank(self) -> int:
        return self.environment.node_rank()

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int] | None:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    # -- set-up ------------------------------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        super().setup_environment()
        if not self.environment.creates_processes_externally:
            if self.start_method != "popen":
                raise MisconfigurationException(
                    f"Processes started by {self.start_method!r}, as 'ddp_spawn', 'ddp_fork' and 'ddp_notebook' ask "
                    "for, come with a later version: use `strategy='ddp'` in a script."
                )
            self.processes = Processes.start(self.environment, self.num_processes)
        self.join()

    def join(self) -> None:
        """Join the group, unless an earlier call did."""
        if self.peers is not None:
            return
        backend = self.process_group_backend or BACKENDS.get(self.root_device.type, "gloo")
        timeout = self.timeout or timedelta(minutes=30)
        os.environ["MASTER_ADDR"] = self.environment.main_address
        os.environ["MASTER_PORT"] = str(self.environment.main_port)
        rank, world_size = self.global_rank, self.world_size
        store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
        dist.init_process_group(
            backend,
            store=PrefixStore("group", store),
            rank=rank,
            world_size=world_size,
            timeout=timeout,
            device_id=self.root_device if backend == "nccl" else None,
        )
        self.host_group = None if backend == "gloo" else dist.new_group(backend="gloo", timeout=timeout)
        self.peers = Peers(store, rank, world_size)
        atexit.register(self.leave)

    def teardown(self) -> None:
        super().teardown()
        if self.peers is not None and self.peers.failed:  # the others may wait for this process
            self.leave()

    def leave(self) -> None:
        """Leave the group, when all others do, and see this machine's processes end.

        A gloo process that exits while something refers to its group sometimes aborts, or hangs, when its work is done
        (pytorch's issue 190489): what the run held must be gone before.
        """
        peers, self.peers = self.peers, None
        if peers is not None:
            atexit.unregister(self.leave)
            gc.collect()
            if dist.is_initialized():
                if not peers.failed:
                    peers.wait_for_all()
                self.host_group = None
                dist.destroy_process_group()
            peers.close()
        if self.processes is not None:
            self.processes.end(at_once=peers is not None and peers.failed)
            self.processes = None
        self.environment.teardown()

    def end_with(self, error: BaseException) -> BaseException:
        if self.peers is None or isinstance(error, RankError):
            return error
        first = self._dead_process(error) or self.peers.report(error)
        ends_with = error if first.rank == self.global_rank else RankError(first)
        if self.global_rank:
            be_quiet_about(ends_with)
        return ends_with

    def _dead_process(self, error: BaseException) -> Failure | None:
        """If the connection to another process broke, which one that is: it may have been killed."""
        assert self.peers is not None
        if not is_of_connection(error):
            return None
        end = monotonic() + 2.0
        while monotonic() < end and not self.peers.known_failure(seconds=0.1):
            for rank, code in (self.processes.failed() if self.processes is not None else {}).items():
                how = f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"
                return self.peers.report_death(self.global_rank + rank, how)
        return None

    # -- across processes ----------------------------------------------------------------------------------------------

    def reduce(self, tensor: Tensor, operation: str = "mean") -> Tensor:
        return collectives.reduce(tensor, operation)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        return collectives.broadcast(value, source, self.host_group)

    def all_gather(self, tensor: Tensor, sync_grads: bool = False) -> Tensor:
        return collectives.all_gather(tensor.to(self.root_device), sync_grads)

    def gather_numbers(self, numbers: list[float]) -> list[list[float]]:
        return collectives.gather_numbers(numbers, self.host_group)

    def gather_objects(self, value: Any) -> list[Any]:
        return collectives.gather_objects(value, self.host_group)

    def barrier(self, name: str | None = None) -> None:
        if dist.is_initialized():
            dist.barrier(group=self.host_group)


def is_of_connection(error: BaseException) -> bool:
    """Whether it may be that another process of the group is gone."""
    words = ("gloo", "nccl", "connection", "socket", "store")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def be_quiet_about(error: BaseException) -> None:
    """Let the interpreter end without a traceback of this error, which another process, or this one, has told."""
    hook = sys.excepthook

    def quiet(kind: type[BaseException], value: BaseException, trace: Any) -> None:
        if value is not error:
            hook(kind, value, trace)

    sys.excepthook = quiet
