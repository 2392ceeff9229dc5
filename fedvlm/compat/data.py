"""``dassl.data``: class names of the run for trainers, and what files of data sets derive from.

A trainer's file learns the class names and their number; images belong to the clients, and reach it
batch by batch only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from yacs.config import CfgNode

from fedvlm.compat.tools import Registry, check_isfile, read_image, tolist_if_not
from fedvlm.compat.world import here, inside
from fedvlm.core.errors import FedvlmError

DATASET_REGISTRY = Registry("DATASET")


class Datum:
    """One image: path, label, domain, class name."""

    def __init__(
        self, impath: str = "", label: int = 0, domain: int = 0, classname: str = ""
    ) -> None:
        if not isinstance(impath, str) or not check_isfile(impath):
            raise FedvlmError(f"a Datum names the image '{impath}', which does not exist")
        self._impath, self._label, self._domain, self._classname = impath, label, domain, classname

    @property
    def impath(self) -> str:
        """Path of the image."""
        return self._impath

    @property
    def label(self) -> int:
        """Number of its class."""
        return self._label

    @property
    def domain(self) -> int:
        """Number of its domain."""
        return self._domain

    @property
    def classname(self) -> str:
        """Name of its class."""
        return self._classname


class DatasetBase:
    """Lists of ``Datum``; classes are those of ``train_x``, by label."""

    dataset_dir = ""
    domains: Sequence[str] = ()

    def __init__(
        self, train_x: Any = None, train_u: Any = None, val: Any = None, test: Any = None
    ) -> None:
        self.train_x, self.train_u, self.val, self.test = train_x, train_u, val, test
        self.lab2cname = {d.label: d.classname for d in train_x or ()}
        self.num_classes = max(self.lab2cname, default=-1) + 1
        self.classnames = [self.lab2cname[label] for label in sorted(self.lab2cname)]


class RunDataset:
    """What a trainer's file may know of the run's data: its classes."""

    def __init__(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        self.classnames = list(classnames)
        self.lab2cname = dict(enumerate(self.classnames))
        self.num_classes = len(self.classnames)
        self.templates = list(templates)

    def __getattr__(self, name: str) -> Any:
        """Refuse images.

        Raises:
            FedvlmError: for Dassl's lists of images; ``AttributeError`` for any other name.
        """
        if name in ("train_x", "train_u", "val", "test"):
            raise FedvlmError(
                f"a trainer's file reads dm.dataset.{name} while its model is built: in a "
                "federation images belong to clients and reach the file only through "
                "forward_backward"
            )
        raise AttributeError(name)


class Length:
    """A loader of which a file may only ask the length."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size, self.length = batch_size, 1

    def __len__(self) -> int:
        """Batches of one local epoch of the client at work."""
        return self.length

    def __iter__(self) -> Any:
        """Refuse (``FedvlmError``)."""
        raise FedvlmError("a trainer's file iterates over its loader, but fedvlm passes the "
                          "batches to it")


class DatasetWrapper(Dataset):
    """A list of ``Datum`` as torch's dataset of Dassl's dicts."""

    def __init__(
        self, cfg: CfgNode, data_source: Sequence[Datum],
        transform: Callable[[Any], Tensor] | Sequence[Callable[[Any], Tensor]] | None = None,
        is_train: bool = False,
    ) -> None:
        self.cfg, self.data_source, self.is_train = cfg, data_source, is_train
        self.transform = transform

    def __len__(self) -> int:
        """Number of images."""
        return len(self.data_source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return ``img``, ``label``, ``domain``, ``impath`` and ``index``."""
        item = self.data_source[index]
        image: Any = read_image(item.impath)
        ways = [lambda x: x] if self.transform is None else tolist_if_not(self.transform)
        views = {f"img{i + 1}" if i else "img": way(image) for i, way in enumerate(ways)}
        return views | {"label": item.label, "domain": item.domain, "impath": item.impath,
                        "index": index}


class DataManager:
    """The run's classes in a run; elsewhere the registered data set ``cfg.DATASET.NAME``."""

    def __init__(
        self, cfg: CfgNode, custom_tfm_train: Any = None, custom_tfm_test: Any = None,
        dataset_wrapper: Any = None,
    ) -> None:
        self.dataset: Any
        self.train_loader_u = self.val_loader = None
        self.train_loader_x: Any
        self.test_loader: Any
        self.num_source_domains = max(1, len(cfg.DATASET.SOURCE_DOMAINS))
        if inside():
            model = here().model
            self.dataset = RunDataset(model.classnames, model.templates)
            self.train_loader_x = Length(int(cfg.DATALOADER.TRAIN_X.BATCH_SIZE))
            self.test_loader = Length(int(cfg.DATALOADER.TEST.BATCH_SIZE))
        else:
            self.dataset = build_dataset(cfg)
            wrap = dataset_wrapper or DatasetWrapper
            train = custom_tfm_train or build_transform(cfg, is_train=True)
            test = custom_tfm_test or build_transform(cfg, is_train=False)
            self.train_loader_x = _loader(
                cfg.DATALOADER.TRAIN_X, wrap(cfg, self.dataset.train_x, train, True), True)
            self.test_loader = _loader(
                cfg.DATALOADER.TEST, wrap(cfg, self.dataset.test, test, False), False)
            if self.dataset.val:
                self.val_loader = _loader(
                    cfg.DATALOADER.TEST, wrap(cfg, self.dataset.val, test, False), False)
        self.lab2cname, self.num_classes = self.dataset.lab2cname, self.dataset.num_classes


def _loader(node: CfgNode, dataset: Any, train: bool) -> DataLoader:
    size = int(node.BATCH_SIZE)
    return DataLoader(
        dataset, batch_size=size, shuffle=train, drop_last=train and len(dataset) >= size)


def build_dataset(cfg: CfgNode) -> Any:
    """Return the registered data set that ``cfg.DATASET.NAME`` means."""
    return DATASET_REGISTRY.get(cfg.DATASET.NAME)(cfg)


def build_transform(cfg: CfgNode, is_train: bool = True, choices: Any = None) -> Any:
    """Return Dassl's transform of the CoOp family: crop, flip, tensor, CLIP's normalisation.

    Raises:
        FedvlmError: ``INPUT.TRANSFORMS`` names another.
    """
    from torchvision import transforms as t  # start-up: 1 s, for files of data sets only

    names = list(cfg.INPUT.TRANSFORMS if choices is None else choices)
    other = set(names) - {"random_resized_crop", "random_flip", "normalize"}
    if other:
        raise FedvlmError(f"INPUT.TRANSFORMS names {sorted(other)}; here: random_resized_crop, "
                          "random_flip, normalize")
    size, way = tuple(cfg.INPUT.SIZE), t.InterpolationMode(cfg.INPUT.INTERPOLATION)
    steps: list[Any] = []
    if is_train and "random_resized_crop" in names:
        scale = tuple(cfg.INPUT.RRCROP_SCALE)
        steps.append(t.RandomResizedCrop(size, scale=scale, interpolation=way))
    else:
        steps += [t.Resize(size if is_train else max(size), interpolation=way), t.CenterCrop(size)]
    if is_train and "random_flip" in names:
        steps.append(t.RandomHorizontalFlip())
    steps.append(t.ToTensor())
    if "normalize" in names:
        steps.append(t.Normalize(cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD))
    return t.Compose(steps)
