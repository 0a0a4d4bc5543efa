"""Progress bars: what a person sees of a run while it goes on."""

from gpulayer.pytorch.callbacks.progress.progress_bar import ProgressBar
from gpulayer.pytorch.callbacks.progress.rich_progress import RichProgressBar
from gpulayer.pytorch.callbacks.progress.tqdm_progress import TQDMProgressBar

__all__ = ["ProgressBar", "RichProgressBar", "TQDMProgressBar"]
