"""A language model of characters, trained on source text of Python's standard library, that then writes some itself.

A transformer of one block and 99 thousand weights, on the package `json`. Look at the loss, and at what it writes: with
`max_epochs=60`, half a minute, it begins to look like Python.
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import gpulayer.pytorch as L

CONTEXT = 64  # characters that the model sees


class Text(Dataset):
    """Every stretch of CONTEXT characters of a text, with the characters that follow each of them."""

    def __init__(self, text: str, letters: str) -> None:
        self.codes = torch.tensor([letters.index(letter) for letter in text])

    def __len__(self) -> int:
        return (len(self.codes) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        begin = index * CONTEXT
        return self.codes[begin : begin + CONTEXT], self.codes[begin + 1 : begin + CONTEXT + 1]


class LanguageModel(L.Module):
    """Says for each position how likely each character comes next.

    Args:
        letters: all characters.
        width: of the vectors.
        rate: the learning rate.
    """

    def __init__(self, letters: str, width: int = 96, rate: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.letter, self.place = nn.Embedding(len(letters), width), nn.Embedding(CONTEXT, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, len(letters))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        length = codes.shape[1]
        hidden = self.letter(codes) + self.place.weight[:length]
        return self.head(self.block(hidden, self.mask[:length, :length], is_causal=True))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        codes, following = batch
        loss = F.cross_entropy(self(codes).flatten(0, 1), following.flatten())
        self.log("loss", loss, prog_bar=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)

    @torch.no_grad()
    def write(self, begin: str, length: int) -> str:
        """Go on with a text, character by character."""
        text = begin
        for _ in range(length):
            codes = torch.tensor([[self.hparams.letters.index(letter) for letter in text[-CONTEXT:]]])
            likely = self(codes)[0, -1].softmax(0)
            text += self.hparams.letters[int(likely.multinomial(1))]
        return text


def main() -> None:
    L.seed_everything(1)
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(json.__file__).parent.glob("*.py")))
    letters = "".join(sorted(set(source)))
    model = LanguageModel(letters)
    trainer = L.Trainer(max_epochs=6, gradient_clip_val=1.0, logger=False, enable_checkpointing=False)
    trainer.fit(model, DataLoader(Text(source, letters), batch_size=16, shuffle=True))

    uniform = torch.tensor(float(len(letters))).log()
    print(f"\nloss {trainer.callback_metrics['loss_epoch']:.2f}; {uniform:.2f} is that of guessing. It writes:\n")
    print(model.eval().write("def ", 200))


if __name__ == "__main__":
    main()
