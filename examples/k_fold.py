"""Cross-validation: five trainings, each of which leaves another fifth of the data out and is judged by that.

Look at the last line: the mean accuracy, and how much it differs between the folds.
"""

import torch
from digits import DigitClassifier, DigitsData
from sklearn.model_selection import StratifiedKFold
from torch.utils.data import ConcatDataset, DataLoader, Subset

import gpulayer.pytorch as L

FOLDS = 5


def main() -> None:
    data = DigitsData()
    data.setup("fit")
    scans = ConcatDataset([data.train, data.val])
    labels = [int(label) for _, label in scans]
    scores = []
    for fold, (train, val) in enumerate(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(labels, labels)):
        L.seed_everything(fold, verbose=False)
        trainer = L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_model_summary=False)
        trainer.fit(
            DigitClassifier(),
            DataLoader(Subset(scans, train), batch_size=64, shuffle=True),
            DataLoader(Subset(scans, val), batch_size=256),
        )
        scores.append(float(trainer.callback_metrics["val_acc"]))
        print(f"fold {fold + 1} of {FOLDS}: {scores[-1]:.1%}\n")
    deviation, mean = torch.std_mean(torch.tensor(scores))
    print(f"accuracy {mean:.1%} +- {deviation:.1%}")


if __name__ == "__main__":
    main()
