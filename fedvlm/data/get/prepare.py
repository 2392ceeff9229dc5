"""Make the split that CoOp would make where its own ``split_zhou_*.json`` is absent.

The shares are CoOp's: 50/20/30 of each class, or 20 % of the training images as validation where
the set itself names its test images. Which image falls where is this project's draw: a stream of
(seed, set, class) over sorted paths, the same on every machine. It is never the published split.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.rng import numpy_stream
from fedvlm.data.catalog import DatasetInfo, dataset_info
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.get.annotations import READERS, Annotations, read_plain_tree
from fedvlm.data.locate import check_relative, explain_refusals, find, find_root

TRAIN, VAL = 0.5, 0.2  # the rest is the test list
VAL_OF_TRAINVAL = 0.2


@dataclass(frozen=True)
class PreparedSplit:
    """A split in memory, not yet written.

    Attributes:
        name: of the set.
        folder: of the set, below the root.
        data: the three lists, checked.
        how: where the lists come from, for the user.
        info: the set's row; None for an own set.
    """

    name: str
    folder: Path
    data: DatasetBase
    how: str
    info: DatasetInfo | None = None

    def content(self) -> dict[str, list[list[str | int]]]:
        """Return the split in CoOp's schema: ``[path, label, class name]`` by part."""
        return {
            part: [[d.key, d.label, d.classname] for d in self.data.parts[part]] for part in PARTS
        }


@explain_refusals()
def prepare_split(
    name: str, root_text: str, *, folder: str = "", image_dir: str = "", seed: int = 0
) -> PreparedSplit:
    """Read a set's tree or annotations and cut it.

    Args:
        name: a known set, or a name of your own together with ``folder``.
        root_text: the folder that holds the sets.
        folder: the set's folder below the root; empty for the known set's own.
        image_dir: own sets: the folder of the images below ``folder``.
        seed: of the cut.

    Raises:
        ConfigError: a set that has nothing to prepare, or an unknown one without a folder.
        DataError: something is missing or inconsistent on disk.
    """
    info = dataset_info(name)
    if info is None:
        return _prepare_own(name, root_text, folder, image_dir, seed)
    if info.name not in READERS:
        raise ConfigError(f"{info.name}: there is nothing to prepare, its layouts need no split "
                          f"file of ours (data prepare knows: {', '.join(READERS)}; own sets: "
                          "give a name of your own and --dir)")
    if image_dir:
        raise ConfigError(f"--image-dir is for own sets; {info.name} has its images in "
                          f"'{info.image_dir or '.'}'")
    check_relative(folder, "--dir")
    what = f"the folder of {info.name} (--dir)"
    home = find(find_root(root_text), folder or info.folder, what, source=info.source)
    annotations = READERS[info.name](home, info)
    return _split(info.name, home, home / info.image_dir, annotations, seed, info)


def _prepare_own(
    name: str, root_text: str, folder: str, image_dir: str, seed: int
) -> PreparedSplit:
    if not folder:
        raise ConfigError(f"data prepare: unknown set '{name}'{did_you_mean(name, READERS)} "
                          f"(known: {', '.join(READERS)}; an own tree of class folders: give its "
                          "folder below the root with --dir)")
    if not name.strip() or any(c in name for c in "/\\\0"):
        raise ConfigError(f"data prepare: '{name}' cannot name a file; take letters and digits")
    home = find(find_root(root_text), folder, f"the folder of {name} (--dir)")
    images = find(home, image_dir, f"the image folder of {name} (--image-dir)")
    return _split(name, home, images, read_plain_tree(images, name), seed, None)


def _split(
    name: str, home: Path, images: Path, annotations: Annotations, seed: int,
    info: DatasetInfo | None,
) -> PreparedSplit:
    _check_files(name, images, annotations)
    parts = cut_lists(annotations, name, seed)
    data = DatasetBase(parts["train"], parts["val"], parts["test"], name=name)
    return PreparedSplit(name, home, data, annotations.how, info)


def cut_lists(annotations: Annotations, name: str, seed: int) -> dict[str, list[Datum]]:
    """Return the three lists: classes by label, images of a class sorted by path.

    Where the set names its test images the rest is cut 80/20 into train and val, else all is cut
    50/20/30. Counts are rounded as CoOp does; train keeps an image of every class, and test too
    where there are two.
    """
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    by_class: dict[int, list[Datum]] = {}
    for datum in annotations.images:
        by_class.setdefault(datum.label, []).append(datum)
    for label in sorted(by_class):
        items = sorted(by_class[label], key=lambda d: d.key)
        order = numpy_stream(seed, "prepare", name, label).permutation(len(items))
        train, val = _counts(len(items), annotations)
        bounds = {"train": (0, train), "val": (train, train + val),
                  "test": (train + val, len(items))}
        for part, (low, high) in bounds.items():
            lists[part] += [items[i] for i in sorted(order[low:high])]
    if annotations.test is not None:
        lists["test"] = sorted(annotations.test, key=lambda d: (d.label, d.key))
    if annotations.val is not None:
        lists["val"] = sorted(annotations.val, key=lambda d: (d.label, d.key))
    return lists


def _counts(n: int, annotations: Annotations) -> tuple[int, int]:
    """Return how many of a class's ``n`` images go to train and val."""
    if annotations.test is not None:
        val = 0 if annotations.val is not None else min(round(VAL_OF_TRAINVAL * n), n - 1)
        return n - val, val
    train = max(round(TRAIN * n), 1)
    return train, min(round(VAL * n), max(n - train - 1, 0))


def _check_files(name: str, folder: Path, annotations: Annotations) -> None:
    """Refuse annotations that name images which are not there."""
    images = [*annotations.images, *(annotations.val or ()), *(annotations.test or ())]
    absent = [d.key for d in images if not d.path.is_file()]
    if absent:
        raise DataError(f"{name}: {len(absent)} of {len(images)} images that {annotations.how} "
                        f"name are not in {folder} (first: {absent[0]}); complete the copy")
