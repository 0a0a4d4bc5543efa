"""How a module is placed on devices and kept in step across processes.

A strategy knows modules, optimizers, tensors and files. It never sees a hook, a callback or a trainer: the loops call
those, so one class serves both the Trainer and Fabric.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpulayer.fabric.accelerators import Accelerator
from gpulayer.fabric.checkpoint.io import CheckpointIO, TorchCheckpointIO
from gpulayer.fabric.environments import ClusterEnvironment
from gpulayer.fabric.peers import Peers
from gpulayer.fabric.precision import Precision
from gpulayer.fabric.utilities.exceptions import storing


class Strategy(ABC):
    """One way to run a module; see the subclasses."""

    backward: Callable[..., None] | None = None  # None: `Tensor.backward`
    optimizer_step: Callable[..., Any] | None = None  # None: the optimizer's own `step`
    # Given each loss before its backward pass, gives back the one to call it on: gradients are then shared meanwhile.
    share_gradients: Callable[[Tensor], Tensor] | None = None
    accumulates_itself = False

    def __init__(
        self,
        accelerator: Accelerator | None,
        precision: Precision | None = None,
        checkpoint_io: CheckpointIO | None = None,
    ) -> None:
        self.accelerator: Any = accelerator
        self.precision = precision or Precision()
        self.checkpoint_io = checkpoint_io or TorchCheckpointIO()
        self.cluster_environment: ClusterEnvironment | None = None
        self.peers: Peers | None = None  # the line to the other processes, where there are some

    # -- where ---------------------------------------------------------------------------------------------------

    def take_place(
        self, accelerator: Accelerator, devices: list[torch.device], num_nodes: int, environment: ClusterEnvironment
    ) -> None:
        """Fill in what the user left out.

        Args:
            accelerator: the kind of device.
            devices: those of this machine.
            num_nodes: how many machines there are.
            environment: what starts processes.

        Raises:
            MisconfigurationException: they do not fit together.
        """
        self.accelerator = self.accelerator or accelerator
        self.cluster_environment = self.cluster_environment or environment

    @property
    @abstractmethod
    def root_device(self) -> torch.device:
        """The device of this process."""

    @property
    def world_size(self) -> int:
        return 1

    @property
    def global_rank(self) -> int:
        return 0

    @property
    def local_rank(self) -> int:
        return 0

    @property
    def node_rank(self) -> int:
        return 0

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int] | None:
        """`num_replicas` and `rank` for a sampler that splits the data; None where data is not split."""
        return None

    # -- set-up --------------------------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """Take the device, and join the group of processes."""
        self.accelerator.setup_device(self.root_device)

    def setup(self, module: nn.Module, optimizers: list[Optimizer]) -> tuple[nn.Module, list[Optimizer]]:
        """Wrap the module and its optimizers for this strategy."""
        return module, optimizers

    def teardown(self) -> None:
        """Undo `setup_environment`."""
        self.checkpoint_io.teardown()
        self.accelerator.teardown()

    def end_with(self, error: BaseException) -> BaseException:
        """Tell the other processes of an error in this one.

        Returns:
            What this process ends with: the error, or that another process failed before.
        """
        return error

    # -- a step --------------------------------------------------------------------------------------------------

    def step_method(self, module: nn.Module, name: str) -> Callable[..., Any]:
        """The module's step `name` to call."""
        method: Callable[..., Any] = getattr(module, name)
        return method

    def sync_gradients(self, step_now: bool) -> None:
        """Called before each of several accumulated batches: processes share gradients only if a step follows."""

    def clip_gradients(self, parameters: Iterable[Tensor], value: float, algorithm: str) -> None:
        """Clip in place: "norm" scales all to a total 2-norm of at most `value`, "value" bounds each element."""
        if algorithm == "value":
            nn.utils.clip_grad_value_(parameters, value)
        else:
            nn.utils.clip_grad_norm_(parameters, value)

    # -- across processes ----------------------------------------------------------------------------------------

    def reduce(self, tensor: Tensor, operation: str = "mean") -> Tensor:
        """The tensor reduced over all processes."""
        return tensor

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """The value that rank `source` has."""
        return value

    def all_gather(self, tensor: Tensor, sync_grads: bool = False) -> Tensor:
        """The tensors of all ranks, stacked along a new first dimension; one process: the tensor itself."""
        return tensor

    def gather_numbers(self, numbers: list[float]) -> list[list[float]]:
        """The numbers of each rank, as many on each, in float64."""
        return [numbers]

    def gather_objects(self, value: Any) -> list[Any]:
        """The object of each rank."""
        return [value]

    def barrier(self, name: str | None = None) -> None:
        """Wait until every process is here."""

    # -- state ---------------------------------------------------------------------------------------------------

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        """The module's whole state."""
        return module.state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's whole state."""
        return optimizer.state_dict()

    def save(self, path: str, state: dict[str, Any], storage_options: Any = None) -> None:
        """Write a checkpoint, on the rank that writes.

        Raises:
            SaveError: the store failed.
        """
        if self.is_global_zero:
            with storing(f"save {path!r}"):
                self.checkpoint_io.save_checkpoint(state, path, storage_options)

    def load(self, path: str, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint."""
        return self.checkpoint_io.load_checkpoint(path, map_location, weights_only)
