"""Manual optimization: a generative adversarial network, whose two optimizers take turns.

With `automatic_optimization = False` the step says itself when to compute gradients and when to make a step. Look at
samples.png, which the generator draws.
"""

import torch
from digits import DigitsData
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

import gpulayer.pytorch as L


class GAN(L.Module):
    """A generator and a discriminator, each a small network."""

    def __init__(self, latent: int = 32) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.latent = latent
        self.generator = nn.Sequential(nn.Linear(latent, 128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid())
        self.discriminator = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))

    def forward(self, noise: Tensor) -> Tensor:
        return self.generator(noise).view(-1, 1, 8, 8)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        real = batch[0].flatten(1)
        noise = torch.randn(len(real), self.latent, device=self.device)
        generating, judging = self.optimizers()

        with self.toggled_optimizer(generating):  # the generator is to be taken for real
            loss = self.loss(self.generator(noise), is_real=True)
            generating.zero_grad()
            self.manual_backward(loss)
            generating.step()

        with self.toggled_optimizer(judging):  # the discriminator is to tell them apart
            fooled = self.loss(self.generator(noise).detach(), is_real=False)
            judged = (self.loss(real, is_real=True) + fooled) / 2
            judging.zero_grad()
            self.manual_backward(judged)
            judging.step()
        self.log_dict({"generator": loss, "discriminator": judged}, on_step=False, on_epoch=True, prog_bar=True)

    def loss(self, images: Tensor, is_real: bool) -> Tensor:
        scores = self.discriminator(images)
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(is_real)))

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(self.generator.parameters(), lr=2e-3, betas=(0.5, 0.999)),
            torch.optim.Adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
        ]


def main() -> None:
    L.seed_everything(1)
    model = GAN()
    trainer = L.Trainer(max_epochs=25, logger=False, enable_checkpointing=False)
    data = DigitsData()
    data.setup("fit")
    trainer.fit(model, data.train_dataloader())

    model.eval()
    with torch.no_grad():
        drawn = model(torch.randn(16, model.latent))
    figure = Figure(figsize=(8, 1.2))
    for axes, image in zip(figure.subplots(1, 16), drawn, strict=True):
        axes.imshow(image[0], cmap="gray_r")
        axes.axis("off")
    figure.savefig("samples.png", dpi=120)
    print(f"\nsamples.png: what the generator draws after {trainer.global_step // 2} steps of each network")


if __name__ == "__main__":
    main()
