"""Which callbacks take part in a call: the Trainer's, those that the module brings, and those that join.

The states of a checkpoint that belong to none of them are kept, and saved again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.fabric.utilities.warnings import PossibleUserWarning
from gpulayer.pytorch.callbacks.progress.progress_bar import ProgressBar
from gpulayer.pytorch.core.callback import Callback, Checkpoint
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.trainer import checks
from gpulayer.pytorch.trainer.defaults import in_order, read_callbacks
from gpulayer.pytorch.trainer.states import TrainerFn


@dataclass
class Brought:
    """What the `configure_callbacks` of a call's module gave."""

    module: Module | None = None
    callbacks: list[Callback] = field(default_factory=list)
    replaced: list[tuple[int, Callback]] = field(default_factory=list)  # of the Trainer's, with their places


class Members:
    """The callbacks of one call.

    Args:
        trainer: the Trainer.
        module: the module of the call.
        fn: which call.
    """

    def __init__(self, trainer: Any, module: Module, fn: TrainerFn) -> None:
        self.trainer, self.module, self.fn = trainer, module, fn
        self.fits = fn is TrainerFn.FITTING
        self.ready: list[Callback] = []  # those that were set up,
        self.restored: list[Callback] = []  # and those that were given their state
        self.checkpoint: dict[str, Any] | None = None
        self.states: dict[Any, Any] = trainer.kept_states if self.fits else {}  # for those that are still to come

    def bring(self) -> None:
        """Let in what the module brings, in place of the Trainer's of the same class or a class above it; those that
        the module of the call before brought leave, and what they replaced is back in its place."""
        trainer, before, name = self.trainer, self.trainer.brought, type(self.module).__name__
        own = [callback for callback in trainer.callbacks if not among(callback, before.callbacks)]
        if len(own) < len(trainer.callbacks):  # unless the user gave it a list without them
            for place, callback in before.replaced:
                own.insert(place, callback)
        trainer.callbacks, trainer.brought = own, Brought(self.module)
        callbacks = read_callbacks(self.module.configure_callbacks(), f"What `{name}.configure_callbacks` returned")
        if not self.fits and before.module is self.module:
            callbacks = [as_before(callback, before.callbacks) for callback in callbacks]
        own = trainer.callbacks
        replaced = [(place, one) for place, one in enumerate(own) if any(replaces(new, one) for new in callbacks)]
        if replaced:
            kinds = sorted({type(callback).__name__ for _, callback in replaced})
            rank_zero_info("`%s.configure_callbacks` replaces callbacks of the Trainer: %s.", name, ", ".join(kinds))
        gone = [callback for _, callback in replaced]
        trainer.callbacks = in_order([callback for callback in own if not among(callback, gone)] + callbacks)
        trainer.brought = Brought(self.module, callbacks, replaced)
        if self.fits:
            checks.distinct_state_keys(trainer.callbacks)

    def set_up(self) -> None:
        """`setup` of those that have not had it in this call, also of those that are added meanwhile."""
        while missing := [callback for callback in self.trainer.callbacks if not among(callback, self.ready)]:
            self.ready.append(missing[0])
            missing[0].setup(self.trainer, self.module, stage=self.fn.value)

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Give all their states from a checkpoint."""
        self.checkpoint, self.states = checkpoint, dict(checkpoint.get("callbacks", {}))
        if self.fits:
            self.trainer.kept_states = self.states
        self.join()

    def join(self) -> None:
        """Set up and restore those that came since."""
        self.set_up()
        if self.fits:
            checks.distinct_state_keys(self.trainer.callbacks)
        self.restore()

    def restore(self) -> None:
        """Put those that were not here before in their places, and give each the state that lies under its key."""
        self.trainer.callbacks = in_order(self.trainer.callbacks)
        joined = [callback for callback in self.trainer.callbacks if not among(callback, self.restored)]
        self.restored += joined
        if self.checkpoint is not None:
            for callback in joined:
                callback.on_load_checkpoint(self.trainer, self.module, self.checkpoint)
        found = [(callback, key) for callback in joined if (key := self.key_of(callback)) is not None]
        states = {key: self.states.pop(key) for key in {key for _, key in found}}
        for callback, key in found:
            if states[key]:
                callback.load_state_dict(dict(states[key]))

    def key_of(self, callback: Callback) -> str | None:
        """The key of a callback's state; before Lightning 1.5 it was the class's name."""
        names = (callback.state_key, type(callback).__qualname__)
        return next((name for name in names if name in self.states), None)

    def all_here(self) -> None:
        """The call begins: the last check, and whose states are left over."""
        if self.fits:
            checks.distinct_state_keys(self.trainer.callbacks)
        if self.checkpoint is not None and self.states:
            kept = "not used, but saved again in the checkpoints of this run" if self.fits else "not used"
            rank_zero_warn(
                "The checkpoint holds the state of callbacks that this Trainer lacks: "
                f"{[str(key) for key in self.states]}. It is {kept}; add them to `Trainer(callbacks=...)` to go on "
                "with it.",
                PossibleUserWarning,
            )
        self.checkpoint = None


def among(callback: Callback, callbacks: list[Callback]) -> bool:
    """Whether it is one of these objects, however its class compares them."""
    return any(callback is one for one in callbacks)


def replaces(new: Callback, own: Callback) -> bool:
    """Whether a callback of the module takes the place of one of the Trainer's. There is one progress bar only."""
    if isinstance(new, ProgressBar) and isinstance(own, ProgressBar):
        return True
    return type(own) is not Callback and isinstance(new, type(own))


def as_before(callback: Callback, before: list[Callback]) -> Callback:
    """In an evaluation a saver stays the one of the training before, which knows where the best checkpoint is."""
    if isinstance(callback, Checkpoint):
        for one in before:
            if type(one) is type(callback) and one.state_key == callback.state_key:
                return one
    return callback
