"""What is known of each data set, as data: folders, classes, sizes, template, where to get it.

Sizes are those of CoOp's published splits (two public tables agree); a copy that differs is used,
with a note. Class names come from the split files; ``renames`` serve trees without one.

What is known of one data set: a row of the table in ``facts``.

What is known of the published multi-domain sets: rows of the table in ``facts``.

Class names come from the lists and trees themselves, never from here. The sizes by domain are those
of the whole set; 0 stands where no published split of this project's sources says it.

CIFAR-100's twenty superclasses of five classes each, by class name (Krizhevsky 2009).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedvlm.core.errors import ConfigError, fold
from fedvlm.data.datum import IntArray

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


FEDBN_DATA = "https://github.com/med-air/FedBN"
DASSL_DATA = "https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md"

_PHOTO = "a photo of a {}."
_DOMAINNET = {
    "clipart": 0, "infograph": 0, "painting": 0, "quickdraw": 0, "real": 0, "sketch": 0,
}  # fmt: skip
_OFFICE = {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}
# 3,929 sketches are published; the broken one that every reader leaves out is not counted.
_PACS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3928}

# fmt: off
DOMAIN_ROWS = (
    Facts("DomainNet", "DomainNet", "", "", 10, None, None, None, _PHOTO, form="domains",
          domains=_DOMAINNET, aliases=("domainnet10",), source=FEDBN_DATA),
    Facts("DomainNetFull", "domainnet", "", "", 345, None, None, None, _PHOTO, form="domains",
          domains=_DOMAINNET, aliases=("domainnet345",), source=DASSL_DATA),
    Facts("OfficeCaltech10", "office_caltech_10", "", "", 10, None, None, None, _PHOTO,
          form="domains", domains=_OFFICE, aliases=("office", "office_caltech"), source=FEDBN_DATA),
    Facts("PACS", "pacs", "", "", 7, None, None, None, _PHOTO, form="domains",
          domains=_PACS, source=DASSL_DATA),
    Facts("OfficeHome", "office_home", "", "", 65, None, None, None, _PHOTO, form="domains",
          domains={"art": 0, "clipart": 0, "product": 0, "real_world": 0}, source=DASSL_DATA),
    Facts("Office31", "office31", "", "", 31, None, None, None, _PHOTO, form="domains",
          domains={"amazon": 0, "dslr": 0, "webcam": 0}, source=DASSL_DATA),
)
# fmt: on


CIFAR_DATA = "https://www.cs.toronto.edu/~kriz/cifar.html"
IMAGENET_DATA = "https://www.image-net.org/download.php"

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
_PARTS = ("train", "val", "test")
_APART = "numbers are not comparable with papers"

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
    Facts("FGVCAircraft", "fgvc_aircraft", "images", "",
          100, 3334, 3333, 3333, "a photo of a {}, a type of aircraft.", form="aircraft",
          base_test=1666, new_test=1667, aliases=("aircraft", "fgvc")),
    Facts("ImageNet", "imagenet", "images", "", 1000, 1281167, 0, 50000, _PHOTO, form="imagenet",
          base_test=25000, new_test=25000, source=IMAGENET_DATA,
          parts={"train": "train", "test": "val"}),
    Facts("ImageNetV2", "imagenetv2", "imagenetv2-matched-frequency-format-val", "",
          1000, 0, 0, 10000, _PHOTO, form="imagenet", base_test=5000, new_test=5000,
          parts={"test": ""}),
    Facts("ImageNetSketch", "imagenet-sketch", "images", "", 1000, 0, 0, 50889, _PHOTO,
          form="imagenet", parts={"test": ""}),
    Facts("ImageNetA", "imagenet-adversarial", "imagenet-a", "", 200, 0, 0, 7500, _PHOTO,
          form="imagenet", parts={"test": ""}),
    Facts("ImageNetR", "imagenet-rendition", "imagenet-r", "", 200, 0, 0, 30000, _PHOTO,
          form="imagenet", parts={"test": ""}),
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

FACTS: dict[str, Facts] = {row.name: row for row in (*_ROWS, *DOMAIN_ROWS)}



def facts_for(name: str) -> Facts | None:
    """Return the row for a set's name or alias (case, dash, underscore aside), or None."""
    wanted = fold(name)
    for row in FACTS.values():
        if wanted in {fold(row.name), fold(row.folder), *map(fold, row.aliases)}:
            return row
    return None


def domain_word(set_name: str, domain: str) -> str:
    """Return one spelling of a domain's name, so that one held-out domain has one run folder.

    The known sets' own spelling; of other sets the name folded (``Site-A`` is ``sitea``), since
    their domains are only known when the data are read.
    """
    facts = facts_for(set_name)
    known = facts.domains if facts else ()
    return next((name for name in known if fold(name) == fold(domain)), fold(domain))


def compare(
    facts: Facts,
    classes: int,
    sizes: Mapping[str, int],
    base_test: int | None = None,
    domains: Mapping[str, int] | None = None,
) -> list[str]:
    """Return notes on where a copy differs from the published set; empty where it is the same.

    Args:
        classes: number of classes found.
        sizes: number of images found, by part.
        base_test: test images found of the base classes; None leaves the halves unchecked.
        domains: number of images found, by domain; None leaves them unchecked.
    """
    want = {"train": facts.train, "val": facts.val, "test": facts.test}
    if classes != facts.classes or any(want[p] not in (None, n) for p, n in sizes.items()):
        return [
            f"{facts.name}: this copy has {_row(classes, sizes)}; the published set has "
            f"{_row(facts.classes, want)}: {_APART}"
        ]
    if base_test is not None and facts.base_test not in (None, base_test):
        return [
            f"{facts.name}: this copy has {base_test}/{sizes['test'] - base_test} test images of "
            f"base/new classes; the published set has {facts.base_test}/{facts.new_test}: {_APART}"
        ]
    found = {fold(name): number for name, number in (domains or {}).items()}
    off = [d for d, n in facts.domains.items() if found and n and found.get(fold(d)) != n]
    if off:
        had = found.get(fold(off[0]), 0)
        return [
            f"{facts.name}: this copy has {had} images of domain '{off[0]}'; the published set has "
            f"{facts.domains[off[0]]}: {_APART}"
        ]
    return []


def _row(classes: int, sizes: Mapping[str, int | None]) -> str:
    counts = "/".join("?" if sizes[p] is None else str(sizes[p]) for p in _PARTS)
    return f"{classes} classes, {counts} images in train/val/test"


CIFAR100: dict[str, tuple[str, ...]] = {
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


def superclasses_of(class_names: Sequence[str]) -> IntArray:
    """Return the superclass number ``[C]`` of each class (0 to 19, in the table's order).

    Args:
        class_names: all or some of CIFAR-100's, with blanks or underscores.

    Raises:
        ConfigError: a name that is none of CIFAR-100's; says which set and kinds work.
    """
    table = {fold(c): n for n, group in enumerate(CIFAR100.values()) for c in group}
    unknown = [name for name in class_names if fold(name) not in table]
    if unknown or not len(class_names):
        named = f" ('{unknown[0]}' is none of its classes)" if unknown else ""
        raise ConfigError(
            "FED.PARTITION superclass_dirichlet works with DATASET.NAME Cifar100 only, whose "
            f"superclasses are known{named}; use FED.PARTITION dirichlet, n_classes or disjoint"
        )
    return np.array([table[fold(name)] for name in class_names], dtype=np.int64)
