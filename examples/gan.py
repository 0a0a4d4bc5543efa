"""Manual optimization: a generative adversarial network, whose two optimizers take turns.

With `automatic_optimization = False` the step says itself when to compute gradients and when to make a step. Look at
samples.png, digits that the generator has made up, and at how near they are to real ones before and after.
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
        self.generator = nn.Sequential(nn.Linear(latent, 256), nn.ReLU(), nn.Linear(256, 64), nn.Sigmoid())
        self.discriminator = nn.Sequential(nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(256, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        real = batch[0].flatten(1)
        fake = self.generator(torch.randn(len(real), self.latent, device=self.device))
        generating, judging = self.optimizers()

        with self.toggled_optimizer(generating):  # the generator wants to be taken for real
            loss = self.loss(fake, is_real=True)
            generating.zero_grad()
            self.manual_backward(loss)
            generating.step()

        with self.toggled_optimizer(judging):  # the discriminator wants to tell them apart
            judged = (self.loss(real, is_real=True) + self.loss(fake.detach(), is_real=False)) / 2
            judging.zero_grad()
            self.manual_backward(judged)
            judging.step()
        self.log_dict({"generator": loss, "discriminator": judged}, on_step=False, on_epoch=True, prog_bar=True)

    def loss(self, images: Tensor, is_real: bool) -> Tensor:
        scores = self.discriminator(images)
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(is_real)))

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(net.parameters(), 1e-3, (0.5, 0.999)) for net in (self.generator, self.discriminator)]


def distance(drawn: Tensor, data: DigitsData) -> float:
    """How far a drawn image is from the nearest real one, on average."""
    real = torch.stack([image.flatten() for image, _ in data.train])
    return torch.cdist(drawn, real).min(dim=1).values.mean().item()


def main() -> None:
    L.seed_everything(1)
    model, data, noise = GAN(), DigitsData(), torch.randn(200, 32)
    before = model.generator(noise)
    trainer = L.Trainer(max_epochs=40, logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=data)
    after = model.generator(noise).detach()

    figure = Figure(figsize=(8, 2), layout="constrained")
    for axes, image in zip(figure.subplots(2, 8).flat, after, strict=False):
        axes.imshow(image.view(8, 8), cmap="gray_r")
        axes.axis("off")
    figure.savefig("samples.png", dpi=120)
    print(
        f"\ndistance to the nearest real scan   {distance(before, data):.2f} before, {distance(after, data):.2f} after"
    )
    print("samples.png shows what the generator draws")


if __name__ == "__main__":
    main()
