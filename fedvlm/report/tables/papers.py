"""Methods and data sets as papers spell them: names, groups, citations, all from the cards.

A card is a method's docstring (``fedvlm list METHOD``). What it does not say is not made up: where
its ``Paper:`` field names no authors, neither does the entry.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from fedvlm.core.errors import fold

ALONE, ONE_MODEL, PERSONAL = "no collaboration", "one shared model", "personal models"
GROUPS = (ALONE, ONE_MODEL, PERSONAL)
_DATASETS = {fold(name): name for name in (
    "CIFAR-10", "CIFAR-100", "Caltech101", "EuroSAT", "DTD", "OxfordPets", "StanfordCars",
    "Flowers102", "Food101", "FGVCAircraft", "SUN397", "UCF101", "ImageNet", "ImageNetV2",
    "ImageNet-Sketch", "ImageNet-A", "ImageNet-R", "DomainNet", "Office-Home", "Office-Caltech10",
    "Tiny-ImageNet", "PACS", "VLCS", "Digits",
)} | {"oxfordflowers": "Flowers102", "descriptiontextures": "DTD", "describabletextures": "DTD"}
VENUES = {
    "AAAI": "AAAI Conference on Artificial Intelligence",
    "ACM Multimedia": "ACM International Conference on Multimedia",
    "AISTATS": "International Conference on Artificial Intelligence and Statistics",
    "CVPR": "IEEE/CVF Conference on Computer Vision and Pattern Recognition",
    "ICLR": "International Conference on Learning Representations",
    "ICML": "International Conference on Machine Learning",
    "MLSys": "Conference on Machine Learning and Systems",
    "MobiCom": "Annual International Conference on Mobile Computing and Networking",
    "NeurIPS": "Advances in Neural Information Processing Systems",
    "NeurIPS workshop": "NeurIPS Workshops",
    "WACV": "IEEE/CVF Winter Conference on Applications of Computer Vision",
    "WWW": "ACM Web Conference",
}
_AUTHORS = re.compile(r"(?P<authors>[^,]+ et al\.|(?:[\w-]+, )*[\w-]+ and [\w-]+), (?P<rest>.+)")
_PLACE = re.compile(r"(?P<title>.+?), (?P<venue>[^,]*?)\s?(?P<year>(?:19|20)\d\d)\b(?P<rest>.*)")
_ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")


def dataset_name(word: object) -> str:
    """Return a data set's name as papers spell it; of one that is not known, the word itself."""
    return _DATASETS.get(fold(str(word)), str(word))


def source_of(word: object) -> str:
    """Return where a data set's images are from; parts of one source are one.

    CIFAR-10 and CIFAR-100 share their photographs, the ImageNet sets their classes, a set's domains
    and parts (``Caltech101/2``) the set.
    """
    name = dataset_name(str(word).partition("/")[0].strip()).rstrip("*")
    for family in ("CIFAR", "ImageNet"):
        if fold(family) in fold(name):
            return family
    return name


@dataclass(frozen=True)
class Paper:
    """What a card says of a method's paper.

    Attributes:
        title: the method's name.
        group: one of ``GROUPS``, by what is shared and what stays personal.
        key: citation key, ``li2021model``; empty where the card names no paper.
        bibtex: the entry; empty where the card names none.
    """

    title: str
    group: str = ""
    key: str = ""
    bibtex: str = ""


def paper_of(card: str, name: str) -> Paper:
    """Return what a card says; of an empty one, only the name."""
    head, colon, _ = card.partition("\n")[0].partition(":")
    title = head.strip() if colon else name
    key, entry = _entry(title, _field(card, "Paper"))
    return Paper(title, _group(card), key, entry)


def bibliography(papers: list[Paper]) -> str:
    """Return the entries by key, each once."""
    return "\n".join(dict(sorted((p.key, p.bibtex) for p in papers if p.key)).values())


def _field(card: str, name: str) -> str:
    match = re.search(rf"^{name}:(.*(?:\n[ \t]+.*)*)", card, flags=re.MULTILINE)
    return " ".join(match.group(1).split()) if match else ""


def _group(card: str) -> str:
    """Return the group: who shares nothing works alone, unless something travels beside."""
    shared, personal = _field(card, "Shared"), _field(card, "Personal")
    if not shared or not personal:
        return ""
    if shared.rstrip(".") == "none":
        return ALONE
    return ONE_MODEL if re.match(r"none(?! by name| during| between)", personal) else PERSONAL


def _entry(name: str, text: str) -> tuple[str, str]:
    """Return citation key and BibTeX entry of a ``Paper:`` field; empty of one without a year."""
    match = _AUTHORS.match(text)
    authors, rest = (match["authors"], match["rest"]) if match else ("", text)
    place = _PLACE.match(rest)
    if place is None or text.startswith("no paper"):
        return "", ""
    title, venue, year = place["title"], place["venue"].strip(), place["year"]
    arxiv = _ARXIV.search(text)
    fields = {"title": f"{{{_latex(title)}}}"}
    if authors:
        people = authors.removesuffix(" et al.")
        names = [one.strip() for one in re.split(r", | and ", people)]
        fields["author"] = " and ".join([*names, *(["others"] if people != authors else [])])
    else:
        fields["key"] = _latex(name)  # stands for the authors, whom the card does not name
    kind = "misc"
    if venue.startswith(("IEEE Trans", "ACM Trans")) or "Journal" in venue:
        kind, fields["journal"] = "article", venue
    elif venue and not venue.startswith("arXiv"):
        kind, fields["booktitle"] = "inproceedings", VENUES.get(venue, venue)
    fields["year"] = year
    if arxiv:
        fields |= {"eprint": arxiv.group(1), "archiveprefix": "arXiv"}
    first = authors.split()[0].strip(",") if authors else name
    word = next(iter(re.findall(r"[A-Za-z]+", title)), "")
    key = _plain(first) + year + ("" if not authors else _plain(word))
    lines = [f"  {field} = {{{value}}}," for field, value in fields.items()]
    return key, "\n".join([f"@{kind}{{{key},", *lines, "}", ""])


def _latex(text: str) -> str:
    return re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", "/"))


def _plain(text: str) -> str:
    """Return a word in ASCII letters and digits, small."""
    bare = unicodedata.normalize("NFKD", text)
    return "".join(c for c in bare if c.isascii() and c.isalnum()).lower()
