"""What is known of each data set, as data: folders, classes, sizes, template, where to get it.

Sizes are those of CoOp's published splits (two public tables agree); a copy that differs is used,
with a note. Class names come from the split files; ``renames`` serve trees without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedvlm.errors import fold

COOP_DATA = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
CIFAR_DATA = "https://www.cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True)
class Facts:
    """One data set's row of the table.

    Attributes:
        name: the value of ``DATASET.NAME``.
        folder: its folder under the root; ``image_dir`` and ``split_file`` lie in it.
        classes, base, new: number of classes, and of the base and new halves.
        train, val, test: images of the published split, None where not known.
        base_test, new_test: test images of the two halves, None where not known.
        form: ``coop`` (split file), ``folders``, ``domains`` or ``cifar``.
        renames: folder name to class name; ``drop``: folders that are no class.
        domains: domain name to number of images (0 where not known), in the order of their numbers.
        source: where to get it; empty for sets this project renders itself.
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

    @property
    def base(self) -> int:
        """Number of base classes: ceil(classes / 2)."""
        return (self.classes + 1) // 2

    @property
    def new(self) -> int:
        """Number of new classes."""
        return self.classes // 2


_CALTECH_NAMES = {
    "airplanes": "airplane",
    "Faces": "face",
    "Leopards": "leopard",
    "Motorbikes": "motorbike",
}
_EUROSAT_NAMES = {
    "AnnualCrop": "Annual Crop Land",
    "Forest": "Forest",
    "HerbaceousVegetation": "Herbaceous Vegetation Land",
    "Highway": "Highway or Road",
    "Industrial": "Industrial Buildings",
    "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land",
    "Residential": "Residential Buildings",
    "River": "River",
    "SeaLake": "Sea or Lake",
}
_PHOTO = "a photo of a {}."

# fmt: off
_ROWS = (
    Facts("Caltech101", "caltech-101", "101_ObjectCategories", "split_zhou_Caltech101.json",
          100, 4128, 1649, 2465, _PHOTO, base_test=1549, new_test=916,
          renames=_CALTECH_NAMES, drop=("BACKGROUND_Google", "Faces_easy")),
    Facts("OxfordPets", "oxford_pets", "images", "split_zhou_OxfordPets.json",
          37, 2944, 736, 3669, "a photo of a {}, a type of pet.",
          base_test=1881, new_test=1788, aliases=("pets",)),
    Facts("StanfordCars", "stanford_cars", "", "split_zhou_StanfordCars.json",
          196, 6509, 1635, 8041, _PHOTO, base_test=4002, new_test=4039, aliases=("cars",)),
    Facts("OxfordFlowers", "oxford_flowers", "jpg", "split_zhou_OxfordFlowers.json",
          102, 4093, 1633, 2463, "a photo of a {}, a type of flower.",
          base_test=1053, new_test=1410, aliases=("flowers", "flowers102")),
    Facts("Food101", "food-101", "images", "split_zhou_Food101.json",
          101, 50500, 20200, 30300, "a photo of {}, a type of food.",
          base_test=15300, new_test=15000, aliases=("food",)),
    Facts("SUN397", "sun397", "SUN397", "split_zhou_SUN397.json",
          397, 15880, 3970, 19850, _PHOTO, base_test=9950, new_test=9900, aliases=("sun",)),
    Facts("DescribableTextures", "dtd", "images", "split_zhou_DescribableTextures.json",
          47, 2820, 1128, 1692, "{} texture.", base_test=864, new_test=828, aliases=("dtd",)),
    Facts("EuroSAT", "eurosat", "2750", "split_zhou_EuroSAT.json",
          10, 13500, 5400, 8100, "a centered satellite photo of {}.",
          base_test=4200, new_test=3900, renames=_EUROSAT_NAMES),
    Facts("UCF101", "ucf101", "UCF-101-midframes", "split_zhou_UCF101.json",
          101, 7639, 1898, 3783, "a photo of a person doing {}.",
          base_test=1934, new_test=1849, aliases=("ucf",)),
    Facts("Cifar10", "cifar-10", "", "", 10, 50000, 0, 10000, _PHOTO, form="cifar",
          base_test=5000, new_test=5000, source=CIFAR_DATA),
    Facts("Cifar100", "cifar-100", "", "", 100, 50000, 0, 10000, _PHOTO, form="cifar",
          base_test=5000, new_test=5000, source=CIFAR_DATA),
    Facts("Shapes", "shapes", "images", "split_zhou_Shapes.json",
          20, 800, 200, 800, _PHOTO, base_test=400, new_test=400, source="", builtin="shapes"),
    Facts("NewNouns", "new_nouns", "images", "split_zhou_NewNouns.json",
          8, 320, 80, 320, _PHOTO, base_test=160, new_test=160, source="", builtin="new_nouns"),
    Facts("Digits", "digits", "images", "split_zhou_Digits.json",
          10, 896, 357, 544, "a photo of the digit {}.", source="",
          base_test=273, new_test=271, builtin="digits"),
    Facts("ShapesDomains", "shapes_domains", "", "", 14, 1400, 560, 840, _PHOTO, form="domains",
          base_test=420, new_test=420, source="", builtin="shapes_domains"),
)
# fmt: on

FACTS: dict[str, Facts] = {row.name: row for row in _ROWS}


def facts_for(name: str) -> Facts | None:
    """Return the row for a set's name or alias (case, dash, underscore aside), or None."""
    wanted = fold(name)
    for row in _ROWS:
        if wanted in {fold(row.name), fold(row.folder), *map(fold, row.aliases)}:
            return row
    return None


def compare(facts: Facts, classes: int, sizes: dict[str, int]) -> list[str]:
    """Return notes on where a copy differs from the published set; empty where it is the same."""
    want = {"train": facts.train, "val": facts.val, "test": facts.test}
    same = all(want[part] in (None, sizes[part]) for part in sizes)
    if classes == facts.classes and same:
        return []

    def row(n: int, s: Mapping[str, int | None]) -> str:
        counts = "/".join("?" if s[p] is None else str(s[p]) for p in ("train", "val", "test"))
        return f"{n} classes, {counts} images in train/val/test"

    return [
        f"{facts.name}: this copy has {row(classes, sizes)}; the published set has "
        f"{row(facts.classes, want)}: numbers are not comparable with papers"
    ]
