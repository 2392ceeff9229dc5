"""Ordinary plant names as class names: no data set's list, but of the usual token lengths.

With CLIP's tokens the first 50 pack into about 250 tokens and the first 102 into about 480, as
the class names of Flowers-102 do (``performance.md`` 2.3).
"""

from __future__ import annotations

PLANTS = (
    "creeping red clover", "early garden pea", "mountain ash berry", "long sweet pepper",
    "common daisy", "yellow horned poppy", "giant fennel", "blue meadow sage", "wild dog rose",
    "yellow plum tomato", "early snow crocus", "swamp white oak", "creeping thyme",
    "french lavender", "field mustard", "river birch", "golden samphire", "climbing ivy",
    "purple loosestrife", "water mint", "red sugar beet", "stone pine", "sweet corn",
    "spotted orchid", "black nightshade", "common heather", "bell pepper", "brewer's hops",
    "wild crab apple", "long spring onion", "korean silver fir", "tree of heaven",
    "dwarf arctic willow", "reindeer moss", "oxeye daisy", "blue sea holly",
    "hart's tongue fern", "hairy bittercress", "lemon balm", "bog cotton grass", "winter wheat",
    "bird of paradise bush", "prickly pear cactus", "marsh marigold", "tulip tree",
    "pineapple weed", "horse chestnut", "rosemary", "woolly thistle", "lamb's ear",
    "giant orange pumpkin", "wood anemone", "twisted hazel", "winged spindle", "false acacia",
    "stinging nettle", "cow parsley", "garden rhubarb", "scarlet runner bean",
    "wild red ginger", "red maple", "black pine", "cherry laurel", "common reed", "sea kale",
    "wild garlic", "black elder", "white clover", "broad bean", "sweet potato", "water spinach",
    "red cabbage", "bay-leaved willow", "wild teasel", "meadow rue", "lady fern", "ground ivy",
    "butter bean", "manna ash tree", "cut-leaved rowan", "coconut palm", "date palm",
    "weeping fig tree", "sour cherry", "white lilac", "yellow iris", "blue flax",
    "hemp agrimony", "sugar cane", "false dill", "water parsnip", "wild celery",
    "globe artichoke", "green asparagus", "wall barley", "wild oat", "buckwheat", "soya bean",
    "perennial peanut", "black chickpea", "red lentil", "creeping juniper",
)
WORDS = ("pale", "dark", "early", "late", "small", "tall", "striped", "winter", "summer", "hardy")


def class_names(count: int) -> list[str]:
    """Return ``count`` different names; beyond the list, with one or two words before them."""
    heads = ["", *(f"{a} " for a in WORDS), *(f"{a} {b} " for a in WORDS for b in WORDS if a != b)]
    names = (f"{head}{plant}" for head in heads for plant in PLANTS)
    found = list(dict.fromkeys(names))
    found += [f"plant number {i}" for i in range(count - len(found))]
    return found[:count]
