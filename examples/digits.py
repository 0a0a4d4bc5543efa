"""Learn to read handwritten digits: 1,797 real scans of 8 x 8 pixels that scikit-learn ships.

    python examples/digits.py

takes about ten seconds and leaves metrics, the best checkpoint and a picture of the learning curve in runs/.
"""

import csv
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint


class DigitsData(L.DataModule):
    """70 % of the scans to train on, 15 % to choose the best epoch, 15 % for the final grade."""

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # (1797, 1, 8, 8), 0 to 1
        everything = TensorDataset(images, torch.tensor(digits.target))
        fixed = torch.Generator().manual_seed(0)
        self.train, self.val, self.test = random_split(everything, [0.7, 0.15, 0.15], generator=fixed)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=64, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, batch_size=256)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.test, batch_size=256)

    def predict_dataloader(self) -> DataLoader:
        return DataLoader(self.test, batch_size=256)


class DigitClassifier(L.Module):
    """A small convolutional network, and what to do with a batch in each stage."""

    def __init__(self, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(64 * 4 * 4, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.grade(batch, "train")

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.grade(batch, "val")

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.grade(batch, "test")

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, _ = batch
        return self(images).argmax(dim=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)

    def grade(self, batch: list[Tensor], stage: str) -> Tensor:
        """The loss of a batch; loss and accuracy are logged as means over the epoch."""
        images, labels = batch
        scores = self(images)
        loss = F.cross_entropy(scores, labels)
        accuracy = (scores.argmax(dim=1) == labels).float().mean()
        self.log_dict({f"{stage}_loss": loss, f"{stage}_acc": accuracy}, on_step=False, on_epoch=True)
        return loss


def draw_learning_curve(metrics: Path, picture: Path) -> None:
    """Loss and accuracy per epoch. A row of metrics.csv leaves a cell empty where it has no value."""
    from matplotlib.figure import Figure  # here, for the other scripts import this one and draw nothing
    from matplotlib.ticker import PercentFormatter

    with metrics.open(newline="") as file:
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(10, 4), layout="constrained")
    losses, accuracies = figure.subplots(1, 2)
    for axes, kind in (losses, "loss"), (accuracies, "acc"):
        for stage, label in ("train", "training (with dropout)"), ("val", "validation"):
            points = [(int(row["epoch"]), float(row[f"{stage}_{kind}"])) for row in rows if row.get(f"{stage}_{kind}")]
            axes.plot(*zip(*points, strict=True), marker=".", label=label)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    losses.set(ylabel="cross-entropy loss (log scale)", yscale="log")
    accuracies.set(ylabel="accuracy")
    accuracies.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    figure.savefig(picture, dpi=120)


def main() -> None:
    L.seed_everything(1)
    data = DigitsData()
    best = ModelCheckpoint(monitor="val_acc", mode="max")
    patience = EarlyStopping(monitor="val_loss", patience=5)
    trainer = L.Trainer(max_epochs=30, callbacks=[best, patience])

    trainer.fit(DigitClassifier(), datamodule=data)
    result = trainer.test(ckpt_path="best", datamodule=data)[0]
    predicted = torch.cat(trainer.predict(ckpt_path="best", datamodule=data))
    actual = torch.stack([label for _, label in data.test])

    folder = Path(trainer.log_dir)
    draw_learning_curve(folder / "metrics.csv", folder / "learning_curve.png")

    print(f"\ntest accuracy    {result['test_acc']:.1%} of {len(actual)} scans that played no part in training")
    print(f"is               {' '.join(map(str, actual[:20].tolist()))} ...")
    print(f"predicted        {' '.join(map(str, predicted[:20].tolist()))} ...")
    print(f"metrics          {folder / 'metrics.csv'}")
    print(f"best checkpoint  {best.best_model_path}")
    print(f"learning curve   {folder / 'learning_curve.png'}")


if __name__ == "__main__":
    main()
