"""Where each set can be got, on which terms, and what its files are: a table.

URLs and checksums are those that torchvision's own classes carry, read from them where they are
attributes. The two rows that spell theirs out (Caltech101, EuroSAT) have them from the body of
torchvision's ``download``; a test compares. What nobody publishes a checksum of, what needs an
account, and what lies behind a form is fetched by hand: the table says what and from where.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedvlm.core.errors import DataError
from fedvlm.data.catalog import CIFAR_DATA, COOP_DATA


@dataclass(frozen=True)
class Piece:
    """One file to fetch.

    Attributes:
        url: where; its last part is the file's name.
        checksum: ``md5:<hex>`` or ``sha256:<hex>``.
        puts: (path in the archive, place below the root); the path is empty for a plain file.
        inner: an archive in the archive, which holds the paths.
    """

    url: str
    checksum: str
    puts: tuple[tuple[str, str], ...]
    inner: str = ""

    @property
    def file(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Offer:
    """How a set can be had.

    Attributes:
        terms: its licence or terms of use, in a line; the page is what counts.
        page: where it is described.
        size: of the download in GB, about; 0 where we do not know it.
        pieces: gives the files; None where it is fetched by hand.
        rest: what is left to fetch by hand, and where it goes below the root.
    """

    terms: str
    page: str
    size: float = 0.0
    pieces: Callable[[], tuple[Piece, ...]] | None = None
    rest: str = ""


def _torchvision(name: str, *attributes: str) -> tuple[Any, ...]:
    """Return attributes of a class of torchvision.datasets."""
    import torchvision  # start-up: a second, for downloads only

    kind = getattr(torchvision.datasets, name, None)
    absent = [a for a in attributes if not hasattr(kind, a)]
    if absent:
        raise DataError(f"torchvision {torchvision.__version__} does not say where to get {name} "
                        f"({absent[0]} is missing): fetch it by hand from the page of "
                        "`fedvlm data list`, or use torchvision 0.29")
    return tuple(getattr(kind, a) for a in attributes)


def _caltech() -> tuple[Piece, ...]:
    return (Piece(
        "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
        "md5:3138e1922a9193bfa496528edbbc45d0",
        (("101_ObjectCategories", "caltech-101/101_ObjectCategories"),),
        inner="caltech-101/101_ObjectCategories.tar.gz",
    ),)  # fmt: skip


def _eurosat() -> tuple[Piece, ...]:
    return (Piece(
        "https://huggingface.co/datasets/torchgeo/eurosat/resolve/"
        "c877bcd43f099cd0196738f714544e355477f3fd/EuroSAT.zip",
        "md5:c8fa014336c82ac7804f0398fcb19387",
        (("2750", "eurosat/2750"),),
    ),)  # fmt: skip


def _dtd() -> tuple[Piece, ...]:
    url, md5 = _torchvision("DTD", "_URL", "_MD5")
    return (Piece(url, f"md5:{md5}", (("dtd/images", "dtd/images"),)),)


def _food() -> tuple[Piece, ...]:
    url, md5 = _torchvision("Food101", "_URL", "_MD5")
    puts = tuple((f"food-101/{n}", f"food-101/{n}") for n in ("images", "meta"))
    return (Piece(url, f"md5:{md5}", puts),)


def _pets() -> tuple[Piece, ...]:
    (resources,) = _torchvision("OxfordIIITPet", "_RESOURCES")
    return tuple(
        Piece(url, f"md5:{md5}", ((folder, f"oxford_pets/{folder}"),))
        for folder in ("images", "annotations")
        for url, md5 in resources if f"/{folder}." in url
    )


def _flowers() -> tuple[Piece, ...]:
    prefix, files = _torchvision("Flowers102", "_download_url_prefix", "_file_dict")
    (images, images_md5), (labels, labels_md5) = files["image"], files["label"]
    return (
        Piece(prefix + images, f"md5:{images_md5}", (("jpg", "oxford_flowers/jpg"),)),
        Piece(prefix + labels, f"md5:{labels_md5}", (("", f"oxford_flowers/{labels}"),)),
    )


def _sun() -> tuple[Piece, ...]:
    url, md5 = _torchvision("SUN397", "_DATASET_URL", "_DATASET_MD5")
    return (Piece(url, f"md5:{md5}", (("SUN397", "sun397/SUN397"),)),)


def _cifar(number: str) -> Callable[[], tuple[Piece, ...]]:
    def pieces() -> tuple[Piece, ...]:
        url, md5, base = _torchvision(f"CIFAR{number}", "url", "tgz_md5", "base_folder")
        return (Piece(url, f"md5:{md5}", ((base, f"cifar-{number}/{base}"),)),)

    return pieces


_VGG = "https://www.robots.ox.ac.uk/~vgg/data"
_RESEARCH = "for non-commercial research and education"
_NONE = "no licence stated"

# fmt: off
OFFERS: dict[str, Offer] = {
    "Caltech101": Offer("CC BY 4.0", "https://data.caltech.edu/records/mzrjq-6wc02",
                        0.14, _caltech),
    "OxfordPets": Offer("CC BY-SA 4.0; the photographs remain their owners'",
                        f"{_VGG}/pets/", 0.81, _pets),
    "StanfordCars": Offer(_RESEARCH, COOP_DATA, 1.9,
                          rest="the images, devkit and test labels, into stanford_cars/"),
    "OxfordFlowers": Offer(f"{_NONE}; published for research", f"{_VGG}/flowers/102/", 0.35,
                           _flowers, f"cat_to_name.json of {COOP_DATA}, into oxford_flowers/"),
    "Food101": Offer("images of foodspotting, for scientific fair use",
                     "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/", 5.0, _food),
    "FGVCAircraft": Offer(_RESEARCH, f"{_VGG}/fgvc-aircraft/", 2.8,
                          rest="the archive's data/, as fgvc_aircraft/"),
    "SUN397": Offer(f"{_NONE}; published for research",
                    "https://vision.princeton.edu/projects/2010/SUN/", 39.0, _sun,
                    "Partitions.zip of the same page (ClassName.txt, Training_01.txt, "
                    "Testing_01.txt), into sun397/"),
    "DescribableTextures": Offer("for research purposes", f"{_VGG}/dtd/", 0.63, _dtd),
    "EuroSAT": Offer("MIT", "https://github.com/phelber/eurosat", 0.09, _eurosat),
    "UCF101": Offer(f"{_NONE}; clips of public videos, for research", COOP_DATA,
                    rest="UCF-101-midframes and ucfTrainTestlist, into ucf101/"),
    "Cifar10": Offer(f"{_NONE}; its page asks for a citation", CIFAR_DATA, 0.17, _cifar("10")),
    "Cifar100": Offer(f"{_NONE}; its page asks for a citation", CIFAR_DATA, 0.17, _cifar("100")),
    "ImageNet": Offer(f"{_RESEARCH}; needs an account", "https://image-net.org/download", 144.0,
                      rest="train and val folders, into imagenet/images/"),
}
# fmt: on


def offer_of(name: str, source: str) -> Offer:
    """Return the row of a set; one without a row is fetched by hand from its ``source``."""
    return OFFERS.get(name) or Offer("see its page", source, rest="its files, by hand")
