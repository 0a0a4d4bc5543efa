"""Finding a batch size, at the path where code written for Lightning looks for it."""

from gpulayer.pytorch.callbacks.batch_size_finder import BatchSizeFinder

__all__ = ["BatchSizeFinder"]
