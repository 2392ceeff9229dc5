"""What is known of one data set: a row of the table in ``facts``."""

from __future__ import annotations

from dataclasses import dataclass, field

COOP_DATA = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"


@dataclass(frozen=True)
class Facts:
    """One data set's row of the table.

    Attributes:
        name: the value of ``DATASET.NAME``.
        folder: its folder under the root; ``image_dir`` and ``split_file`` lie in it.
        classes, base, new: number of classes, and of the base and new halves.
        train, val, test: images of the published split, None where not known.
        base_test, new_test: test images of the two halves, None where not known.
        form: ``coop`` (split file), ``folders``, ``domains``, ``cifar``, ``aircraft`` or
            ``imagenet``.
        renames: folder name to class name; ``drop``: folders that are no class.
        domains: domain name to number of images (0 where not known), in the order of their numbers.
        source: where to get it; empty for sets this project renders itself.
        parts: folders of ImageNet below ``image_dir`` by part; without train, the set is only
            there to be tested on.
    """

    name: str
    folder: str
    image_dir: str
    split_file: str
    classes: int
    train: int | None
    val: int | None
    test: int | None
    template: str
    form: str = "coop"
    base_test: int | None = None
    new_test: int | None = None
    aliases: tuple[str, ...] = ()
    renames: dict[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    source: str = COOP_DATA
    builtin: str = ""
    domains: dict[str, int] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def base(self) -> int:
        """Number of base classes: ceil(classes / 2)."""
        return (self.classes + 1) // 2

    @property
    def new(self) -> int:
        """Number of new classes."""
        return self.classes // 2

    @property
    def test_only(self) -> bool:
        """Whether the published set has test images only."""
        return self.train == 0
