"""CIFAR-100's twenty superclasses of five classes each, by class name (Krizhevsky 2009)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedvlm.data.datum import IntArray
from fedvlm.errors import ConfigError, fold

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
