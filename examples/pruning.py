"""Set half of the weights to zero while training, the smallest ones first, and make that permanent in the checkpoint.

Look at how many weights are zero in the checkpoint, and at the accuracy that is left.
"""

import torch
from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelPruning


def part_to_prune(epoch: int) -> float:
    """Nothing in the first two epochs, then 30 % of the weights that are left, for two epochs."""
    return 0.3 if 2 <= epoch < 4 else 0.0


def main() -> None:
    L.seed_everything(1)
    pruning = ModelPruning("l1_unstructured", amount=part_to_prune, use_lottery_ticket_hypothesis=False)
    trainer = L.Trainer(max_epochs=6, callbacks=[pruning], logger=False)
    model = DigitClassifier()
    trainer.fit(model, datamodule=DigitsData())
    result = trainer.test(model, datamodule=DigitsData(), verbose=False)

    weights = torch.load(trainer.checkpoint_callback.best_model_path)["state_dict"]
    weights = [weight for name, weight in weights.items() if name.endswith("weight")]
    zeros = sum((weight == 0).sum().item() for weight in weights) / sum(weight.numel() for weight in weights)
    print(f"\nzeros in the checkpoint   {zeros:.0%} of the weights")
    print(f"test accuracy             {result['test_acc']:.1%}")


if __name__ == "__main__":
    main()
