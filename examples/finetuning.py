"""Train a new head on a backbone that is frozen, and unfreeze the backbone after two epochs.

The backbone was trained on the digits 0 to 4; the task is now all ten. Look at the number of trainable parameters and
at the learning rates: that of the backbone begins at a tenth of the head's and doubles each epoch until they are equal.
"""

import torch
from digits import DigitClassifier, DigitsData
from torch import nn
from torch.utils.data import Subset

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import BackboneFinetuning


class FirstFive(DigitsData):
    """The scans of 0 to 4."""

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.train, self.val = self.first_five(self.train), self.first_five(self.val)

    def first_five(self, scans: Subset) -> Subset:
        return Subset(scans, [index for index, (_, label) in enumerate(scans) if label < 5])


class Finetuned(DigitClassifier):
    """The convolutions of another network, and a head of its own."""

    def __init__(self, pretrained: nn.Sequential) -> None:
        super().__init__()
        self.backbone, head = pretrained[:-1], nn.Linear(64 * 4 * 4, 10)
        self.network = nn.Sequential(self.backbone, head)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([parameter for parameter in self.parameters() if parameter.requires_grad], lr=3e-3)


class Counter(L.Callback):
    """Says how many parameters are trained in each epoch."""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        trained = sum(parameter.numel() for parameter in pl_module.parameters() if parameter.requires_grad)
        rates = ", ".join(f"{group['lr']:g}" for group in trainer.optimizers[0].param_groups)
        print(f"epoch {trainer.current_epoch + 1}: {trained:,} trainable parameters, learning rates {rates}")


def main() -> None:
    L.seed_everything(1)
    first = DigitClassifier()
    L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False).fit(first, datamodule=FirstFive())

    model = Finetuned(first.network)
    unfreeze = BackboneFinetuning(unfreeze_backbone_at_epoch=2, backbone_initial_ratio_lr=0.1)
    trainer = L.Trainer(max_epochs=4, callbacks=[unfreeze, Counter()], logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=DigitsData())
    result = trainer.test(model, datamodule=DigitsData(), verbose=False)
    print(f"\ntest accuracy on all ten digits   {result['test_acc']:.1%}")


if __name__ == "__main__":
    main()
