"""A copy of a checkpoint in host memory, which later training steps do not change."""

import io
import pickle
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

ALIGNMENT = 64  # bytes; a multiple of every element's size


class Snapshot:
    """The state of a moment.

    The memory that tensors are copied to is kept and used again for the next one: a system that hands out new memory
    writes zeros into it first, which takes longer than the copy.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[int, bool], list[Tensor]] = {}  # by size in bytes and whether it is pinned
        self._objects = b""
        self._kept: list[Any] = []

    def take(self, checkpoint: dict[str, Any]) -> None:
        """Copy a checkpoint; when this returns it may be changed.

        Tensors on a device are copied all at once, and waited for once. Of a storage, the part is copied that tensors
        use; those that share one share the copy. All other objects are pickled.

        Raises:
            Exception: what pickling raises, of an object that cannot be.
        """
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(checkpoint)
        with torch.inference_mode(False), torch.no_grad():  # memory of inference mode could not be written to again
            copies = self._copy([value for value in pickler.kept if isinstance(value, Tensor)])
        self._objects = file.getvalue()
        self._kept = [copies.get(id(value), value) for value in pickler.kept]

    def give(self) -> dict[str, Any]:
        """The checkpoint as it was; its tensors are in memory that the next one is written to."""
        checkpoint: dict[str, Any] = _Unpickler(io.BytesIO(self._objects), self._kept).load()
        return checkpoint

    def _copy(self, tensors: list[Tensor]) -> dict[int, Tensor]:
        """Copies of tensors, each under the `id` of its original."""
        copies: dict[int, Tensor] = {}
        by_storage: dict[tuple[torch.device, int, int], list[Tensor]] = {}
        for tensor in tensors:
            if _is_plain(tensor):
                storage = tensor.untyped_storage()
                by_storage.setdefault((tensor.device, storage.data_ptr(), storage.nbytes()), []).append(tensor)
            elif tensor.device.type != "meta":
                copies[id(tensor)] = _like(tensor, tensor.detach().to("cpu", copy=True))
        free, self._memory = self._memory, {}
        for (device, _, _), sharing in by_storage.items():
            start = min(map(_first_byte, sharing)) // ALIGNMENT * ALIGNMENT
            size = max(map(_last_byte, sharing)) - start
            memory = self._take_memory(free, size, pinned=device.type == "cuda")
            part = torch.empty(0, dtype=torch.uint8, device=device)
            part.set_(sharing[0].untyped_storage(), start, (size,), (1,))
            memory.copy_(part, non_blocking=True)
            for tensor in sharing:
                offset = (_first_byte(tensor) - start) // tensor.itemsize
                view = torch.empty(0, dtype=tensor.dtype, device="cpu")
                view.set_(memory.untyped_storage(), offset, tensor.size(), tensor.stride())
                copies[id(tensor)] = _like(tensor, view)
        for device in {device for device, _, _ in by_storage} - {torch.device("cpu")}:
            torch.accelerator.current_stream(device).synchronize()
        return copies

    def _take_memory(self, free: dict[tuple[int, bool], list[Tensor]], size: int, pinned: bool) -> Tensor:
        key = (size, pinned)
        if free.get(key):
            memory = free[key].pop()
        else:
            memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        self._memory.setdefault(key, []).append(memory)
        return memory


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is a view on a storage of numbers, and nothing else."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _first_byte(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.itemsize


def _last_byte(tensor: Tensor) -> int:
    """Of the storage, the byte after the tensor's last element."""
    last: int = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return _first_byte(tensor) + (last + 1) * tensor.itemsize


def _like(original: Tensor, copy: Tensor) -> Tensor:
    """The copy, with what else is saved of a tensor: its class, whether it needs a gradient, its attributes."""
    if isinstance(original, nn.Parameter) and not isinstance(copy, nn.Parameter):
        copy = nn.Parameter(copy, requires_grad=False)
    copy.requires_grad_(original.requires_grad)
    copy.__dict__.update(original.__dict__)
    return copy


class _Pickler(pickle.Pickler):
    """Pickles all but tensors, and what is the same object in a copy: functions, classes, modules."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.kept: list[Any] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, (Tensor, FunctionType, ModuleType, type)):
            return None
        if id(value) not in self._places:
            self._places[id(value)] = len(self.kept)
            self.kept.append(value)
        return self._places[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, place: int) -> Any:
        return self._kept[place]
