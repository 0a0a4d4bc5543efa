"""A callback of your own, with state: it notes the norm of the gradients, and the step at which it was largest.

What `state_dict` returns is kept in checkpoints, and given back when a run goes on from one.
"""

from typing import Any

import torch
from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L


class GradientNorm(L.Callback):
    """Logs the 2-norm of all gradients before each optimizer step."""

    def __init__(self) -> None:
        self.largest, self.at_step = torch.tensor(0.0), torch.tensor(0)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.Module, optimizer: Any) -> None:
        norm = torch.nn.utils.get_total_norm([p.grad for p in pl_module.parameters() if p.grad is not None])
        # Tensors throughout: `if norm > self.largest` would wait for the device at every step.
        self.at_step = torch.where(norm > self.largest, trainer.global_step, self.at_step)
        self.largest = torch.maximum(norm, self.largest)
        self.log("gradient_norm", norm)

    def state_dict(self) -> dict[str, Any]:
        return {"largest": self.largest, "at_step": self.at_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.largest, self.at_step = state_dict["largest"], state_dict["at_step"]


def main() -> None:
    L.seed_everything(1)
    norm = GradientNorm()
    trainer = L.Trainer(max_epochs=2, callbacks=[norm], log_every_n_steps=5)
    trainer.fit(DigitClassifier(), datamodule=DigitsData())
    print(f"\nthe largest gradient, {norm.largest:.2f}, was that of step {norm.at_step}; all are in {trainer.log_dir}")


if __name__ == "__main__":
    main()
