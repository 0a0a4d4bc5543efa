"""DataModule: everything about the data in one class."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gpulayer.fabric.utilities.types import MapLocation, Path
from gpulayer.pytorch.core.hooks import DataHooks
from gpulayer.pytorch.core.hparams import HyperparametersMixin, accepted_arguments
from gpulayer.pytorch.core.saving import make_from_checkpoint, on_the_class

if TYPE_CHECKING:
    from gpulayer.pytorch.trainer.trainer import Trainer

T = TypeVar("T", bound="DataModule")
Datasets = Dataset[Any] | Iterable[Dataset[Any]]


class DataModule(DataHooks, HyperparametersMixin):
    """Prepares, splits and loads data, apart from any model. Pass it as `trainer.fit(model, datamodule=...)`.

    `prepare_data` runs once per machine, `setup` on every process, then the loaders are made.
    """

    CHECKPOINT_HYPER_PARAMS_KEY = "datamodule_hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "datamodule_hparams_name"
    CHECKPOINT_HYPER_PARAMS_TYPE = "datamodule_hparams_type"

    name: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.prepare_data_per_node = True
        self.trainer: Trainer | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickle, as worker processes get it, must not drag the Trainer along.
        return {**self.__dict__, "trainer": None}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint is to keep of the data's state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""

    def on_exception(self, exception: BaseException) -> None:
        """When the run ends by an error or by Ctrl+C."""

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Datasets | None = None,
        val_dataset: Datasets | None = None,
        test_dataset: Datasets | None = None,
        predict_dataset: Datasets | None = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **datamodule_kwargs: Any,
    ) -> DataModule:
        """A DataModule of ready-made datasets; only the training data is shuffled.

        Args:
            train_dataset: one dataset or several.
            val_dataset: likewise.
            test_dataset: likewise.
            predict_dataset: likewise.
            batch_size: samples a batch.
            num_workers: processes that load.
            **datamodule_kwargs: for `cls.__init__`.
        """

        given: dict[str, tuple[Datasets | None, bool]] = {
            "train_dataloader": (train_dataset, True),
            "val_dataloader": (val_dataset, False),
            "test_dataloader": (test_dataset, False),
            "predict_dataloader": (predict_dataset, False),
        }
        datamodule = cls(
            **accepted_arguments(cls, {**datamodule_kwargs, "batch_size": batch_size, "num_workers": num_workers})
        )
        for name, (datasets, shuffle) in given.items():
            if datasets is not None:
                setattr(datamodule, name, partial(_loaders, datasets, shuffle, batch_size, num_workers))
        return datamodule

    @on_the_class
    def load_from_checkpoint(
        cls: type[T],
        checkpoint_path: Path | IO[bytes],
        map_location: MapLocation = None,
        hparams_file: Path | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> T:
        """A DataModule made with a checkpoint's hyperparameters; arguments as in `Module.load_from_checkpoint`.

        Raises:
            MisconfigurationException: the file is no checkpoint, or an argument of `__init__` is missing.
        """
        datamodule, checkpoint = make_from_checkpoint(
            cls, checkpoint_path, map_location, hparams_file, weights_only, kwargs
        )
        datamodule.load_state_dict(checkpoint.get(type(datamodule).__qualname__, {}))
        return datamodule


def _loaders(datasets: Datasets, shuffle: bool, batch_size: int, num_workers: int) -> Any:
    """A loader of a dataset, or a list of them; on its own, so that a DataModule which has it can be pickled."""
    if not isinstance(datasets, Dataset):
        return [_loaders(dataset, shuffle, batch_size, num_workers) for dataset in datasets]
    return DataLoader(
        datasets,
        batch_size=batch_size,
        shuffle=shuffle and not isinstance(datasets, IterableDataset),
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
    )


LightningDataModule = DataModule
