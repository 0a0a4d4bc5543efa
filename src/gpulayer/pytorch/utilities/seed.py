"""Random states, at the path where code written for Lightning imports them."""

from gpulayer.fabric.utilities.seed import isolate_rng, seed_everything

__all__ = ["isolate_rng", "seed_everything"]
