"""One process's place in the world: its device, precision, strategy and files."""

from gpulayer.fabric.utilities.seed import seed_everything

__all__ = ["seed_everything"]
