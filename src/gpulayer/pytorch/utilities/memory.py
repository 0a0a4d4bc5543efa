"""Running out of memory: telling such an error from others, and giving memory back."""

import gc

import torch

# What the messages say, for torch raises a plain RuntimeError for most of them.
SIGNS = (
    "out of memory",  # CUDA, MPS, XPU
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",  # Windows
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",  # also what older versions of cuDNN say when its workspace does not fit,
    "unable to find an engine to execute this computation",  # and newer ones
    "is killed by signal: Killed",  # a loader's worker, by the kernel, which had no memory left
    "insufficient shared memory",  # of a loader's workers
)


def is_oom_error(exception: BaseException) -> bool:
    """Whether the error says that memory ran out, that of the device or of the host."""
    if isinstance(exception, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = f"{exception} {exception.__cause__}"  # a loader says only there that its worker was killed
    return isinstance(exception, RuntimeError) and any(sign in text for sign in SIGNS)


def garbage_collection_cuda() -> None:
    """Collect what Python no longer uses, and give the cached memory of CUDA and MPS back."""
    gc.collect()
    for backend in (torch.cuda, torch.mps) if torch.backends.mps.is_available() else (torch.cuda,):
        try:
            backend.empty_cache()
        except RuntimeError as error:
            if not is_oom_error(error):
                raise
