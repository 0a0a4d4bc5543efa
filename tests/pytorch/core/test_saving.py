"""load_from_checkpoint."""

from __future__ import annotations

import io
from argparse import Namespace
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import pytest
import torch
from torch import nn

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import load_file
from tests.pytorch.models import Line, loader, same, trainer, weights


class Sized(Line):
    def __init__(self, width: int, depth: int = 1, activation: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters(ignore="activation")
        self.wide = nn.Linear(width, depth)
        self.activation = activation


def saved(model: L.Module, **keywords: Any) -> tuple[str, dict[str, torch.Tensor]]:
    """A checkpoint of the trained model, and its weights."""
    used = trainer()
    used.fit(model, loader())
    used.save_checkpoint("model.ckpt", **keywords)
    return "model.ckpt", weights(model)


def test_weights_and_arguments_come_back() -> None:
    path, trained = saved(Sized(3, depth=2))
    loaded = Sized.load_from_checkpoint(path)
    assert (loaded.hparams.width, loaded.hparams.depth) == (3, 2)
    assert same(weights(loaded), trained)
    assert loaded.training


def test_a_path_object_and_an_open_file() -> None:
    path, trained = saved(Sized(3))
    assert same(weights(Sized.load_from_checkpoint(Path(path))), trained)
    with open(path, "rb") as file:
        assert same(weights(Sized.load_from_checkpoint(file)), trained)


def test_weights_alone_are_enough() -> None:
    path, trained = saved(Sized(3), weights_only=True)
    assert same(weights(Sized.load_from_checkpoint(path)), trained)


def test_given_arguments_win() -> None:
    path, _ = saved(Sized(3))
    loaded = Sized.load_from_checkpoint(path, activation="relu", depth=1)
    assert loaded.activation == "relu"


def test_a_given_argument_that_does_not_fit_the_weights() -> None:
    path, _ = saved(Sized(3))
    with pytest.raises(RuntimeError, match=r"size mismatch: wide\.weight \(1, 3\) in the file, \(1, 4\) in the module"):
        Sized.load_from_checkpoint(path, width=4)


class Unsaved(Line):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 1)


def test_a_missing_argument_is_named() -> None:
    path, trained = saved(Unsaved(3))
    with pytest.raises(MisconfigurationException) as caught:
        Unsaved.load_from_checkpoint(path)
    for piece in ("Unsaved could not be made from 'model.ckpt'", "'width'", "name=value", "save_hyperparameters()"):
        assert piece in str(caught.value)
    assert same(weights(Unsaved.load_from_checkpoint(path, width=3)), trained)


class Fails(Line):
    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        if fail:
            raise TypeError("unsupported operand: the user's own argument")


def test_an_error_in_init_is_the_users() -> None:
    path, _ = saved(Fails())
    with pytest.raises(TypeError, match="the user's own"):
        Fails.load_from_checkpoint(path, fail=True)


class Longer(Sized):
    """One layer more than what was saved, one less."""

    def __init__(self, width: int, depth: int = 1) -> None:
        super().__init__(width, depth)
        self.added = nn.Linear(1, 1)
        del self.wide


def test_other_weights_than_were_saved() -> None:
    path, trained = saved(Sized(3))
    with pytest.raises(RuntimeError, match=r"missing in the file: added\.weight.*only in the file: wide\.weight"):
        Longer.load_from_checkpoint(path)
    loaded = Longer.load_from_checkpoint(path, strict=False)
    assert torch.equal(loaded.net.weight, trained["net.weight"])


def test_a_module_may_say_that_other_weights_are_fine() -> None:
    class Lenient(Longer):
        strict_loading = False

    path, trained = saved(Sized(3))
    assert torch.equal(Lenient.load_from_checkpoint(path).net.weight, trained["net.weight"])
    with pytest.raises(RuntimeError, match="missing in the file"):
        Lenient.load_from_checkpoint(path, strict=True)


def test_where_to() -> None:
    path, _ = saved(Sized(3))
    assert Sized.load_from_checkpoint(path, map_location="cpu").device.type == "cpu"


def test_hyperparameters_from_a_file() -> None:
    path, trained = saved(Unsaved(3))
    Path("hparams.yaml").write_text("width: 3\n")
    Path("hparams.csv").write_text("key,value\nwidth,3\n")
    for file in ("hparams.yaml", "hparams.csv"):
        assert same(weights(Unsaved.load_from_checkpoint(path, hparams_file=file)), trained)
    Path("hparams.json").write_text("{}")
    with pytest.raises(MisconfigurationException, match=r"'hparams\.json'.*\.yaml or a \.csv"):
        Unsaved.load_from_checkpoint(path, hparams_file="hparams.json")


@dataclass
class Config:
    width: int


class Configured(Line):
    """Its hyperparameters are one argument."""

    def __init__(self, conf: Any) -> None:
        super().__init__()
        self.save_hyperparameters(conf)
        width = conf["width"] if isinstance(conf, dict) else conf.width
        self.wide = nn.Linear(width, 1)


@pytest.mark.parametrize("conf", [{"width": 3}, Namespace(width=3), Config(3)], ids=["dict", "Namespace", "dataclass"])
def test_hyperparameters_that_are_one_object(conf: Any) -> None:
    path, trained = saved(Configured(conf))
    loaded = Configured.load_from_checkpoint(path)
    assert same(weights(loaded), trained)
    assert loaded.hparams.width == 3


class OpenArguments(Line):
    def __init__(self, width: int, **more: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.more = more


def test_keywords_of_any_name() -> None:
    path, _ = saved(OpenArguments(3, a=1, b="x"))
    assert OpenArguments.load_from_checkpoint(path).more == {"a": 1, "b": "x"}


def test_a_module_may_take_more_from_the_checkpoint() -> None:
    class Keeps(Line):
        counted = 0

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["counted"] = 42

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.counted = checkpoint["counted"]

    path, _ = saved(Keeps())
    assert Keeps.load_from_checkpoint(path).counted == 42


def test_layers_that_configure_model_makes() -> None:
    """They are made before the weights are put into them."""

    class Late(Line):
        def configure_model(self) -> None:
            if not hasattr(self, "late"):
                self.late = nn.Linear(2, 2)

    path, trained = saved(Late())
    assert same(weights(Late.load_from_checkpoint(path)), trained)


def test_a_loaded_model_goes_on() -> None:
    """It predicts, and trains anew from its weights."""
    path, _ = saved(Sized(3))
    loaded = Sized.load_from_checkpoint(path)
    before = weights(loaded)
    used = trainer()
    used.fit(loaded, loader())
    assert used.global_step == 4
    assert not same(before, weights(loaded))


# -- where from, where to ----------------------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


def test_from_a_server() -> None:
    pytest.importorskip("aiohttp")  # with which fsspec reads http
    path, trained = saved(Sized(3))
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/"
            assert same(weights(Sized.load_from_checkpoint(url + path)), trained)
            with pytest.raises(FileNotFoundError, match=r"no checkpoint at 'http.*none\.ckpt'"):
                Sized.load_from_checkpoint(url + "none.ckpt")
        finally:
            server.shutdown()
            thread.join()


def test_from_a_file_system_of_fsspecs() -> None:
    path, trained = saved(Sized(3))
    fsspec.filesystem("memory").put_file(path, "/models/model.ckpt")
    assert same(weights(Sized.load_from_checkpoint("memory://models/model.ckpt")), trained)


def test_from_bytes_in_memory() -> None:
    path, trained = saved(Sized(3))
    assert same(weights(Sized.load_from_checkpoint(io.BytesIO(Path(path).read_bytes()))), trained)


@pytest.mark.parametrize(
    ("where", "device"),
    [
        ("meta", "meta"),
        (torch.device("meta"), "meta"),
        ({"cpu": "meta"}, "meta"),
        (lambda storage, location: storage, "cpu"),
        (None, "cpu"),
    ],
    ids=["text", "device", "dict", "function", "none"],
)
def test_where_to_in_each_form(where: Any, device: str) -> None:
    path, _ = saved(Sized(3))
    assert load_file(path, where)["state_dict"]["wide.weight"].device.type == device
    if device == "cpu":
        assert Sized.load_from_checkpoint(path, map_location=where).device.type == device


# -- made with what ----------------------------------------------------------------------------------------------------


class Wrapper(Line):
    """A module in a module, which is given when loading and not kept among the hyperparameters."""

    def __init__(self, inner: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["inner"])
        self.inner = inner


def test_a_nested_module_is_given_again() -> None:
    path, trained = saved(Wrapper(nn.Linear(2, 2), scale=3.0))
    loaded = Wrapper.load_from_checkpoint(path, inner=nn.Linear(2, 2))
    assert same(weights(loaded), trained)
    assert loaded.hparams.scale == 3.0
    with pytest.raises(MisconfigurationException, match="'inner'"):
        Wrapper.load_from_checkpoint(path)


class Child(Sized):
    """Takes fewer arguments than what was saved has."""

    def __init__(self, width: int) -> None:
        super().__init__(width, depth=2)


class Stranger(Line):
    """Takes none of them."""


def test_a_subclass_with_other_arguments() -> None:
    path, trained = saved(Sized(3, depth=2))
    assert same(weights(Child.load_from_checkpoint(path)), trained)
    loaded = Stranger.load_from_checkpoint(path, strict=False)
    assert torch.equal(loaded.net.weight, trained["net.weight"])


def test_overrides_of_one_object_of_hyperparameters() -> None:
    path, _ = saved(Configured({"width": 3}))
    loaded = Configured.load_from_checkpoint(path, conf={"width": 3, "extra": 1})
    assert loaded.hparams == {"width": 3, "extra": 1}


def test_hyperparameters_from_a_file_beside_keywords() -> None:
    path, _ = saved(Sized(3, depth=2))
    Path("hparams.yaml").write_text("width: 3\ndepth: 5\n")
    assert Sized.load_from_checkpoint(path, hparams_file="hparams.yaml", depth=2).hparams.depth == 2


def test_what_is_called_in_which_order() -> None:
    """Layers first, then the module's own word on the checkpoint, then the weights."""
    calls: list[str] = []

    class Notes(Line):
        def configure_model(self) -> None:
            calls.append("configure_model")

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            calls.append("on_load_checkpoint")
            checkpoint["state_dict"]["net.bias"] = torch.full((1,), 7.0)

        def load_state_dict(self, *arguments: Any, **keywords: Any) -> Any:
            calls.append("load_state_dict")
            return super().load_state_dict(*arguments, **keywords)

    path, _ = saved(Line())
    loaded = Notes.load_from_checkpoint(path)
    assert calls == ["configure_model", "on_load_checkpoint", "load_state_dict"]
    assert loaded.net.bias.item() == 7.0


class Data(L.LightningDataModule):
    def __init__(self, size: int = 2, **more: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.seen = 0

    def train_dataloader(self) -> Any:
        return loader(size=self.hparams.size)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": 11}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


def test_a_datamodule() -> None:
    used = trainer()
    used.fit(Line(), datamodule=Data(4, names=["a"]))
    used.save_checkpoint("model.ckpt")
    loaded = Data.load_from_checkpoint("model.ckpt")
    assert (loaded.hparams, loaded.seen) == ({"size": 4, "names": ["a"]}, 11)
    assert Data.load_from_checkpoint("model.ckpt", size=1).hparams.size == 1


# -- what does not fit -------------------------------------------------------------------------------------------------


class Deep(Line):
    def __init__(self) -> None:
        super().__init__()
        self.many = nn.Sequential(*[nn.Linear(1, 1) for _ in range(20)])


def test_a_few_of_many_names_are_enough() -> None:
    path, _ = saved(Line())
    with pytest.raises(RuntimeError) as caught:
        Deep.load_from_checkpoint(path)
    assert "'model.ckpt' do not fit `Deep`; missing in the file: many.0.weight, many.0.bias" in str(caught.value)
    assert "and 35 more" in str(caught.value)
    assert len(str(caught.value)) < 500
    with pytest.raises(RuntimeError, match=r"'model\.ckpt' do not fit `Deep`"):
        trainer().fit(Deep(), loader(), ckpt_path=path)


def test_no_weight_that_fits_is_told() -> None:
    """As with other prefixes in the names: then the module would silently keep its random weights."""
    path, trained = saved(Line())
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["state_dict"] = {f"model.{name}": value for name, value in trained.items()}
    torch.save(checkpoint, path)
    with pytest.warns(
        UserWarning, match=r"None of the weights in 'model\.ckpt' fit `Line`.*only in the file: model\.net"
    ):
        Line.load_from_checkpoint(path, strict=False)


def test_an_error_of_the_users_own_while_weights_are_loaded() -> None:
    class Picky(Line):
        def load_state_dict(self, *arguments: Any, **keywords: Any) -> Any:
            raise RuntimeError("the user's own")

    path, _ = saved(Line())
    with pytest.raises(RuntimeError, match="the user's own"):
        Picky.load_from_checkpoint(path)


def test_bare_weights_are_no_checkpoint() -> None:
    torch.save(Line().state_dict(), "weights.pt")
    with pytest.raises(
        MisconfigurationException, match=r"bare weights.*`model\.load_state_dict\(torch\.load\(path\)\)`"
    ):
        Line.load_from_checkpoint("weights.pt")


class Grouped(Line):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([{"params": [self.net.weight]}, {"params": [self.net.bias]}], lr=0.1)


def test_optimizers_of_other_parameter_groups() -> None:
    path, _ = saved(Line())
    with pytest.raises(MisconfigurationException, match=r"SGD cannot go on.*'model\.ckpt'.*different number of param"):
        trainer(max_epochs=2).fit(Grouped(), loader(), ckpt_path=path)


def test_a_part_that_resuming_needs_is_missing() -> None:
    path, _ = saved(Line())
    checkpoint = torch.load(path, weights_only=True)
    for gone, message in (("lr_schedulers", "lacks 'lr_schedulers'"), ("optimizer_states", "saved with weights only")):
        del checkpoint[gone]
        torch.save(checkpoint, path)
        with pytest.raises(MisconfigurationException, match=message):
            trainer(max_epochs=2).fit(Line(), loader(), ckpt_path=path)
