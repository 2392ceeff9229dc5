"""What is known of each data set: folders, classes, sizes, template, where to get it.

Sizes are those of CoOp's published splits (two public tables agree); the sizes by domain are those
of the whole set, 0 where no published split says them. A copy that differs is used, with a note.
Class names come from the split files, lists and trees; ``renames`` serve trees without a split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedvlm.core.errors import ConfigError, fold
from fedvlm.data.datum import PARTS, IntArray

CIFAR_DATA = "https://www.cs.toronto.edu/~kriz/cifar.html"
COOP_DATA = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
DASSL_DATA = "https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md"
FEDBN_DATA = "https://github.com/med-air/FedBN"
IMAGENET_DATA = "https://www.image-net.org/download.php"
_INCOMPARABLE = "numbers are not comparable with papers"


@dataclass(frozen=True)
class DatasetInfo:
    """One data set's row of the table.

    Attributes:
        name: the value of ``DATASET.NAME``.
        folder: its folder under the root; ``image_dir`` and ``split_file`` lie in it.
        classes, base, new: number of classes, and of the base and new halves.
        train, val, test: images of the published split, None where not known.
        base_test, new_test: test images of the two halves, None where not known.
        form: ``coop`` (split file), ``domains``, ``cifar``, ``aircraft`` or ``imagenet``.
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


_PHOTO = "a photo of a {}."
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
_DOMAINNET = {
    "clipart": 0, "infograph": 0, "painting": 0, "quickdraw": 0, "real": 0, "sketch": 0,
}  # fmt: skip
_OFFICE = {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}
# 3,929 sketches are published; the broken one that every reader leaves out is not counted.
_PACS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3928}

# fmt: off
_SINGLE_DOMAIN = (
    DatasetInfo(
        "Caltech101", "caltech-101", "101_ObjectCategories", "split_zhou_Caltech101.json",
        100, 4128, 1649, 2465, _PHOTO, base_test=1549, new_test=916,
        renames=_CALTECH_NAMES, drop=("BACKGROUND_Google", "Faces_easy"),
    ),
    DatasetInfo(
        "OxfordPets", "oxford_pets", "images", "split_zhou_OxfordPets.json",
        37, 2944, 736, 3669, "a photo of a {}, a type of pet.",
        base_test=1881, new_test=1788, aliases=("pets",),
    ),
    DatasetInfo(
        "StanfordCars", "stanford_cars", "", "split_zhou_StanfordCars.json",
        196, 6509, 1635, 8041, _PHOTO, base_test=4002, new_test=4039, aliases=("cars",),
    ),
    DatasetInfo(
        "OxfordFlowers", "oxford_flowers", "jpg", "split_zhou_OxfordFlowers.json",
        102, 4093, 1633, 2463, "a photo of a {}, a type of flower.",
        base_test=1053, new_test=1410, aliases=("flowers", "flowers102"),
    ),
    DatasetInfo(
        "Food101", "food-101", "images", "split_zhou_Food101.json",
        101, 50500, 20200, 30300, "a photo of {}, a type of food.",
        base_test=15300, new_test=15000, aliases=("food",),
    ),
    DatasetInfo(
        "SUN397", "sun397", "SUN397", "split_zhou_SUN397.json",
        397, 15880, 3970, 19850, _PHOTO, base_test=9950, new_test=9900, aliases=("sun",),
    ),
    DatasetInfo(
        "DescribableTextures", "dtd", "images", "split_zhou_DescribableTextures.json",
        47, 2820, 1128, 1692, "{} texture.", base_test=864, new_test=828, aliases=("dtd",),
    ),
    DatasetInfo(
        "EuroSAT", "eurosat", "2750", "split_zhou_EuroSAT.json",
        10, 13500, 5400, 8100, "a centered satellite photo of {}.",
        base_test=4200, new_test=3900, renames=_EUROSAT_NAMES,
    ),
    DatasetInfo(
        "UCF101", "ucf101", "UCF-101-midframes", "split_zhou_UCF101.json",
        101, 7639, 1898, 3783, "a photo of a person doing {}.",
        base_test=1934, new_test=1849, aliases=("ucf",),
    ),
    DatasetInfo(
        "FGVCAircraft", "fgvc_aircraft", "images", "",
        100, 3334, 3333, 3333, "a photo of a {}, a type of aircraft.", form="aircraft",
        base_test=1666, new_test=1667, aliases=("aircraft", "fgvc"),
    ),
    DatasetInfo(
        "ImageNet", "imagenet", "images", "", 1000, 1281167, 0, 50000, _PHOTO, form="imagenet",
        base_test=25000, new_test=25000, source=IMAGENET_DATA,
        parts={"train": "train", "test": "val"},
    ),
    DatasetInfo(
        "ImageNetV2", "imagenetv2", "imagenetv2-matched-frequency-format-val", "",
        1000, 0, 0, 10000, _PHOTO, form="imagenet", base_test=5000, new_test=5000,
        parts={"test": ""},
    ),
    DatasetInfo(
        "ImageNetSketch", "imagenet-sketch", "images", "", 1000, 0, 0, 50889, _PHOTO,
        form="imagenet", parts={"test": ""},
    ),
    DatasetInfo(
        "ImageNetA", "imagenet-adversarial", "imagenet-a", "", 200, 0, 0, 7500, _PHOTO,
        form="imagenet", parts={"test": ""},
    ),
    DatasetInfo(
        "ImageNetR", "imagenet-rendition", "imagenet-r", "", 200, 0, 0, 30000, _PHOTO,
        form="imagenet", parts={"test": ""},
    ),
    DatasetInfo(
        "Cifar10", "cifar-10", "", "", 10, 50000, 0, 10000, _PHOTO, form="cifar",
        base_test=5000, new_test=5000, source=CIFAR_DATA,
    ),
    DatasetInfo(
        "Cifar100", "cifar-100", "", "", 100, 50000, 0, 10000, _PHOTO, form="cifar",
        base_test=5000, new_test=5000, source=CIFAR_DATA,
    ),
    DatasetInfo(
        "Shapes", "shapes", "images", "split_zhou_Shapes.json",
        20, 800, 200, 800, _PHOTO, base_test=400, new_test=400, source="", builtin="shapes",
    ),
    DatasetInfo(
        "NewNouns", "new_nouns", "images", "split_zhou_NewNouns.json",
        8, 320, 80, 320, _PHOTO, base_test=160, new_test=160, source="", builtin="new_nouns",
    ),
    DatasetInfo(
        "Digits", "digits", "images", "split_zhou_Digits.json",
        10, 896, 357, 544, "a photo of the digit {}.", source="",
        base_test=273, new_test=271, builtin="digits",
    ),
    DatasetInfo(
        "ShapesDomains", "shapes_domains", "", "", 14, 1400, 560, 840, _PHOTO, form="domains",
        base_test=420, new_test=420, source="", builtin="shapes_domains",
    ),
)
_MULTI_DOMAIN = (
    DatasetInfo(
        "DomainNet", "DomainNet", "", "", 10, None, None, None, _PHOTO, form="domains",
        domains=_DOMAINNET, aliases=("domainnet10",), source=FEDBN_DATA,
    ),
    DatasetInfo(
        "DomainNetFull", "domainnet", "", "", 345, None, None, None, _PHOTO, form="domains",
        domains=_DOMAINNET, aliases=("domainnet345",), source=DASSL_DATA,
    ),
    DatasetInfo(
        "OfficeCaltech10", "office_caltech_10", "", "", 10, None, None, None, _PHOTO,
        form="domains", domains=_OFFICE, aliases=("office", "office_caltech"), source=FEDBN_DATA,
    ),
    DatasetInfo(
        "PACS", "pacs", "", "", 7, None, None, None, _PHOTO, form="domains",
        domains=_PACS, source=DASSL_DATA,
    ),
    DatasetInfo(
        "OfficeHome", "office_home", "", "", 65, None, None, None, _PHOTO, form="domains",
        domains={"art": 0, "clipart": 0, "product": 0, "real_world": 0}, source=DASSL_DATA,
    ),
    DatasetInfo(
        "Office31", "office31", "", "", 31, None, None, None, _PHOTO, form="domains",
        domains={"amazon": 0, "dslr": 0, "webcam": 0}, source=DASSL_DATA,
    ),
)
# fmt: on

CATALOG: dict[str, DatasetInfo] = {row.name: row for row in (*_SINGLE_DOMAIN, *_MULTI_DOMAIN)}

# CIFAR-100's twenty superclasses of five classes each, by class name (Krizhevsky 2009).
CIFAR100_SUPERCLASSES: dict[str, tuple[str, ...]] = {
    "aquatic mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit and vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household electrical devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large man-made outdoor things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large natural outdoor scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large omnivores and herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium-sized mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles 1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles 2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}


def dataset_info(name: str) -> DatasetInfo | None:
    """Return the row for a set's name or alias (case, dash, underscore aside), or None."""
    key = fold(name)
    for row in CATALOG.values():
        if key in {fold(row.name), fold(row.folder), *map(fold, row.aliases)}:
            return row
    return None


def catalog_names() -> list[str]:
    """Return the names and the aliases of all sets."""
    return [*CATALOG, *(alias for row in CATALOG.values() for alias in row.aliases)]


def canonical_domain(set_name: str, domain: str) -> str:
    """Return one spelling of a domain's name, so that one held-out domain has one run folder.

    The known sets' own spelling; of other sets the name folded (``Site-A`` is ``sitea``), since
    their domains are only known when the data are read.
    """
    info = dataset_info(set_name)
    names = info.domains if info else ()
    return next((name for name in names if fold(name) == fold(domain)), fold(domain))


def compare_sizes(
    info: DatasetInfo,
    classes: int,
    sizes: Mapping[str, int],
    base_test: int | None = None,
    domains: Mapping[str, int] | None = None,
) -> list[str]:
    """Return notes on where a copy differs from the published set; empty where it is the same.

    Args:
        classes: number of classes of the copy.
        sizes: its images by part.
        base_test: its test images of the base classes; None leaves the halves unchecked.
        domains: its images by domain; None leaves them unchecked.
    """
    want = {"train": info.train, "val": info.val, "test": info.test}
    if classes != info.classes or any(want[p] not in (None, n) for p, n in sizes.items()):
        return [
            f"{info.name}: this copy has {_row(classes, sizes)}; the published set has "
            f"{_row(info.classes, want)}: {_INCOMPARABLE}"
        ]
    if base_test is not None and info.base_test not in (None, base_test):
        return [
            f"{info.name}: this copy has {base_test}/{sizes['test'] - base_test} test images of "
            f"base/new classes; the published set has {info.base_test}/{info.new_test}: "
            f"{_INCOMPARABLE}"
        ]
    counts = {fold(name): number for name, number in (domains or {}).items()}
    for name, number in info.domains.items():
        count = counts.get(fold(name), 0)
        if counts and number and count != number:
            return [
                f"{info.name}: this copy has {count} images of domain '{name}'; the published set "
                f"has {number}: {_INCOMPARABLE}"
            ]
    return []


def missing_classes(name: str, classes: int) -> str:
    """Return that a set's copy has fewer classes than are published; '' where it has not."""
    info = dataset_info(name)
    if info is None or classes >= info.classes:
        return ""
    return f"this copy of {info.name} has {classes} of the {info.classes} published classes"


def _row(classes: int, sizes: Mapping[str, int | None]) -> str:
    counts = "/".join("?" if sizes[p] is None else str(sizes[p]) for p in PARTS)
    return f"{classes} classes, {counts} images in train/val/test"


def superclasses_of(class_names: Sequence[str]) -> IntArray:
    """Return the superclass number ``[C]`` of each class (0 to 19, in the table's order).

    Args:
        class_names: all or some of CIFAR-100's, with blanks or underscores.

    Raises:
        ConfigError: a name that is none of CIFAR-100's; says which set and kinds work.
    """
    table = {fold(c): n for n, group in enumerate(CIFAR100_SUPERCLASSES.values()) for c in group}
    others = [name for name in class_names if fold(name) not in table]
    if others or not len(class_names):
        reason = f" ('{others[0]}' is not one of its classes)" if others else ""
        raise ConfigError(
            "FED.PARTITION superclass_dirichlet works with DATASET.NAME Cifar100 only, whose "
            f"superclasses are known{reason}; use FED.PARTITION dirichlet, n_classes or disjoint"
        )
    return np.array([table[fold(name)] for name in class_names], dtype=np.int64)
