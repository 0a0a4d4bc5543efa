"""What all tests share: one thread, which is plenty for networks this small and the same on every machine."""

import torch

torch.set_num_threads(1)
