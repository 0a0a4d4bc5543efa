"""Loads all that a training run loads, so that the processes that are forked from here begin in milliseconds."""

import torch

import tests.crash.runs  # noqa: F401

weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.AdamW([weight])  # torch imports its compiler when the first optimizer is made
weight.sum().backward()
optimizer.step()
