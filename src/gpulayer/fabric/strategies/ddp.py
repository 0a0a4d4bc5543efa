"""DDP: each process has the whole model, and they average their gradients."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gpulayer.fabric.accelerators import Accelerator
from gpulayer.fabric.checkpoint.io import CheckpointIO
from gpulayer.fabric.environments import ClusterEnvironment
from gpulayer.fabric.precision import Precision
from gpulayer.fabric.strategies.parallel import ParallelStrategy


class _Passed(nn.Module):
    """The module that DistributedDataParallel wraps: its forward pass gives back the loss that it is given.

    DDP gets ready for a backward pass in its own forward pass. As that may come just before the backward pass, the
    module's steps need not be called through it, in automatic and in manual optimization alike.

    Args:
        module: whose gradients are averaged.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, loss: Tensor) -> Tensor:
        return loss


class DDPStrategy(ParallelStrategy):
    """`torch.nn.parallel.DistributedDataParallel`.

    Args:
        accelerator: as in `ParallelStrategy`, and so are the others but these:
        ddp_comm_hook: how gradients are exchanged, such as `torch.distributed.algorithms.ddp_comm_hooks.
            default_hooks.fp16_compress_hook`, or `powerSGD_hook.powerSGD_hook`.
        ddp_comm_state: the hook's state; None: the group of processes.
        ddp_comm_wrapper: such as `default_hooks.fp16_compress_wrapper`, put around the hook.
        model_averaging_period: with the hook of post-local SGD, average the weights every so many optimizer steps.
        **kwargs: arguments of `DistributedDataParallel`, such as `find_unused_parameters`, `static_graph` and
            `gradient_as_bucket_view`.
    """

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
        ddp_comm_state: Any = None,
        ddp_comm_hook: Callable[..., Any] | None = None,
        ddp_comm_wrapper: Callable[..., Any] | None = None,
        model_averaging_period: int | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = timedelta(minutes=30),
        start_method: str = "popen",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            accelerator,
            parallel_devices,
            cluster_environment,
            checkpoint_io,
            precision,
            process_group_backend,
            timeout,
            start_method,
        )
        self.ddp_comm_state = ddp_comm_state
        self.ddp_comm_hook = ddp_comm_hook
        self.ddp_comm_wrapper = ddp_comm_wrapper
        self.model_averaging_period = model_averaging_period
        self.ddp_kwargs = kwargs
        self.wrapped: DistributedDataParallel | None = None

    def setup(self, module: nn.Module, optimizers: list[Optimizer]) -> tuple[nn.Module, list[Optimizer]]:
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return module, optimizers  # nothing to share, and DDP refuses it
        # With several optimizers each backward pass reaches some of the parameters only.
        options = {"find_unused_parameters": len(optimizers) > 1, **self.ddp_kwargs}
        device = self.root_device
        ids = [device.index] if device.type == "cuda" else None
        self.wrapped = DistributedDataParallel(_Passed(module), device_ids=ids, **options)
        if self.ddp_comm_hook is not None:
            hook = self.ddp_comm_hook if self.ddp_comm_wrapper is None else self.ddp_comm_wrapper(self.ddp_comm_hook)
            self.wrapped.register_comm_hook(self.ddp_comm_state, hook)
        self.share_gradients = self.wrapped
        return module, optimizers

    def sync_gradients(self, step_now: bool) -> None:
        if self.wrapped is not None:
            self.wrapped.require_backward_grad_sync = step_now

    def teardown(self) -> None:
        self.wrapped = self.share_gradients = None  # it refers to the group, which must outlive it
        super().teardown()
