"""Which reader serves which set where its published split file is absent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedvlm.data.annotations_base import Annotated
from fedvlm.data.annotations_mat import read_cars, read_flowers
from fedvlm.data.annotations_text import read_pets, read_sun, read_ucf
from fedvlm.data.annotations_tree import read_cifar_tree, read_class_tree
from fedvlm.data.facts import Facts

READERS: dict[str, Callable[[Path, Facts], Annotated]] = {
    "Caltech101": read_class_tree,
    "OxfordPets": read_pets,
    "StanfordCars": read_cars,
    "OxfordFlowers": read_flowers,
    "Food101": read_class_tree,
    "SUN397": read_sun,
    "DescribableTextures": read_class_tree,
    "EuroSAT": read_class_tree,
    "UCF101": read_ucf,
    "Cifar10": read_cifar_tree,
    "Cifar100": read_cifar_tree,
}
