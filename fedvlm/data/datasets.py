"""DATASET_REGISTRY and ``load_dataset``: from the DATASET node of the config to checked lists.

A set is either in the catalog, or registered by a user's class, or described by the config
alone (``DATASET.DIR`` and ``DATASET.FORMAT``). Reading lists files; it decodes no image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError, DataError, did_you_mean, fold, one_form
from fedvlm.core.files import user_path
from fedvlm.core.plugins import Registry
from fedvlm.core.repository import builtin_root, cache_dir
from fedvlm.data.catalog import CATALOG, DatasetInfo, catalog_names, compare_sizes, dataset_info
from fedvlm.data.datum import PARTS, DatasetBase, sort_names, untested_classes
from fedvlm.data.layouts import (
    CopyInfo,
    choose,
    explain_absence,
    layouts_of,
    prepared_layouts,
    prepared_name,
    reader_of,
)
from fedvlm.data.locate import (
    PACK_SUFFIX,
    describe_content,
    explain_refusals,
    find,
    find_root,
    first_names,
    pack_root,
    packs_in,
    subfolders,
)

DATASET_REGISTRY: Registry[Callable[[CfgNode], DatasetBase]] = Registry("dataset")
_TABLES = ("csv", "jsonl", "parquet", "json")
TEXTS = "texts"
_LEVELS = 4  # of folders, the deepest of which are classes of a domain's part
FORMATS = ("coop", *_TABLES, "folders", "domains", "cifar", "tiny_imagenet", TEXTS)
_WITH_TEST = ("coop", "cifar", "tiny_imagenet")  # formats that have test images of their own
_UNSHARED = "DATASET.TEST_SHARE (--test-share) draws no test images:"
_HINT = "; or set DATASET.FORMAT (folders, csv, ...) to read a copy of another shape"
MEMORY_FORMAT = "memory"  # DATASET.FORMAT of what a Python program gave (``memory/given.py``)
DEFAULT_TEMPLATE = "a photo of a {}."
ONE_CLASS = ("every client has one class: alone is right by always naming it, so this cannot say "
             "whether to federate")
_LISTED = 5  # clients that a sentence names


def load_dataset(cfg: CfgNode, whole: bool = True) -> DatasetBase:
    """Read the data set that ``cfg.DATASET`` names, from its images or from a feature pack.

    Raises:
        ConfigError: unknown name (and no DATASET.DIR that describes an own set) or format; a pack
            of another set.
        DataError: something is missing on disk or inconsistent; the message says what.
    """
    data = _load(cfg, whole)
    check_holders(data, cfg.DATASET.get("CLIENTS_BY", ""), cfg.DATASET.get("GROUPS", ""))
    if cfg.DATASET.get("CAPTIONS", "") and not data.captioned:
        raise ConfigError(
            f"--captions {cfg.DATASET.CAPTIONS} names a column of a table of your own images, and "
            f"{data.name} as it is read here has no captions: give such a table (--images "
            "list.csv)"
        )
    if cfg.DATASET.get("LABELS", "") and not data.label_names:
        raise ConfigError(
            f"--labels {cfg.DATASET.LABELS} names columns of a table of your own "
            f"{data.kind}s, and {data.name} as it is read here is none (nor does a feature pack "
            "have sets of labels)")
    if (name := cfg.DATASET.get("UNLABELLED", "")) and not data.unlabelled:
        raise ConfigError(
            f"DATASET.UNLABELLED {name} names a folder of {data.kind}s without labels among "
            f"your own class folders, and {data.name} as it is read here has none; in a table, "
            "leave the cell of the class empty")
    return data


@explain_refusals()
def _load(cfg: CfgNode, whole: bool) -> DatasetBase:
    name = cfg.DATASET.NAME
    if fold(cfg.DATASET.FORMAT) == MEMORY_FORMAT:
        raise ConfigError(
            f"{name} (DATASET.FORMAT {MEMORY_FORMAT}) is data that a Python program held: give "
            "them to fedvlm.train(data=...) again there; a command line, a sweep and its workers "
            "read images from disk: --images FOLDER"
        )
    info = dataset_info(name)
    key = info.name if info else name
    if cfg.DATASET.get("CLASSNAMES", "") and (info is not None or key in DATASET_REGISTRY):
        raise ConfigError(f"--classnames is for your own images; {key} has published class names")
    pack = pack_of(cfg)
    if pack is not None:
        from fedvlm.data.packs.place import read_pack  # start-up: for packs only

        return read_pack(cfg, pack)
    if key in DATASET_REGISTRY:
        return DATASET_REGISTRY.get(key)(cfg)
    if not name.strip() or not cfg.DATASET.DIR:
        names = DATASET_REGISTRY.registered_names()
        raise ConfigError(
            f"unknown DATASET.NAME '{name}'{did_you_mean(name, [*names, *catalog_names()])} "
            f"(known: {', '.join(names)}; own data: set DATASET.DIR and DATASET.FORMAT, "
            "see configs/datasets/custom_folders.yaml)"
        )
    data = in_one_form(read_by_config(cfg, find_root(cfg.DATASET.ROOT), whole=whole))
    data = _checked(name, data)
    return rename_classes(data, cfg.DATASET.get("CLASSNAMES", ""))


def in_one_form(data: DatasetBase) -> DatasetBase:
    """Return a set whose class names are composed (NFC), however files spell them."""
    if any(name != one_form(name) for name in {d.classname for d in data.all()}):
        data.parts = {part: [replace(d, classname=one_form(d.classname)) for d in items]
                      for part, items in data.parts.items()}
    return data


def rename_classes(data: DatasetBase, text: str) -> DatasetBase:
    """Return an own set with the class names that DATASET.CLASSNAMES says.

    Raises:
        ConfigError: names that do not fit its classes.
        DataError: two classes of one name, or a name that is none.
    """
    if not text:
        return data
    from fedvlm.data.formats.class_names import given_names  # start-up: for such a file only

    names = given_names(text, data.label_names or data.classnames)
    if data.label_names:
        data.label_names = names
    else:
        data.parts = {part: [replace(d, classname=names[d.label]) for d in items]
                      for part, items in data.parts.items()}
    data.check()
    return data


def set_name(cfg: CfgNode) -> str:
    """Return the name that the set will have once it is read; empty where only that tells."""
    name: str = cfg.DATASET.NAME
    info = dataset_info(name)
    if info is not None and cfg.DATASET.FORMAT != MEMORY_FORMAT:
        return info.name
    return "" if info is None and name in DATASET_REGISTRY else name


def load_for_training(cfg: CfgNode) -> DatasetBase:
    """Read the data set that ``cfg.DATASET`` names, which must have training images.

    Raises:
        ConfigError: it is only there to be tested on (ImageNetV2, -Sketch, -A, -R); else as
            ``load_dataset``.
        DataError: as ``load_dataset``.
    """
    data = load_dataset(cfg)
    if not data.train_x:
        raise ConfigError(
            f"{data.name} has test images only and cannot be trained on: train on another set, "
            f"such as ImageNet, and name {data.name} in TEST.TARGETS"
        )
    if cfg.DATASET.get("JOIN_TEST", 0.0):
        from fedvlm.data.formats.parts import join_test  # start-up: for joined parts only

        join_test(data, float(cfg.DATASET.JOIN_TEST), int(cfg.DATA_SEED))
    refuse_untestable(data)
    if not data.test and not cfg.DATASET.get("GROUPS", ""):  # these have a note of their own
        where = " at one client" if data.client_names else ""
        data.notes.insert(0, (
            f"{data.name}: there is no test {data.kind}, so a run measures no accuracy and cannot "
            f"say whether to federate: give more {data.kind}s (two of one class{where} make a "
            "test), or a test part"))
    words = cfg.DATASET.get("CORRUPTION", "")
    if not words:
        return data
    from fedvlm.data.corruption import corrupt_tests  # start-up: for corrupted images only

    return corrupt_tests(data, words)


def refuse_untestable(data: DatasetBase) -> None:
    """Refuse a set that says little of what is trained.

    Raises:
        DataError: most classes have no test image; says what may have been misread.
    """
    bare = untested_classes(data.parts)
    if not bare:
        return
    strange = sorted({d.classname for d in data.test} - {d.classname for d in data.train_x})
    also = ""
    if strange:
        also = (f"; '{strange[0]}' has test {data.kind}s only: if these have no labels, leave "
                "their folder out with DATASET.LEAVE_OUT")
    raise DataError(
        f"{data.name}: {len(bare)} of {len({d.label for d in data.train_x})} trained classes have "
        f"no test {data.kind} (first: {', '.join(bare[:3])}){also}; give every class test "
        f"{data.kind}s, or take the test part away and let DATASET.TEST_SHARE 0.3 draw them from "
        "train"
    )


def refuse_one_class(
    data: DatasetBase, or_else: str = ", or name the column of the class with --columns "
    "classname=COLUMN"
) -> None:
    """Refuse a user's own images that are all of one class, whoever shares them.

    Args:
        or_else: another way out.

    Raises:
        DataError: they are.
    """
    classes = {d.classname for d in data.all()}
    if len(classes) < 2 and not (data.label_names or data.captioned):
        raise DataError(
            f"{data.name}: there is one class only, {', '.join(classes)}; a classifier needs two: "
            f"give the images of another class, too{or_else}")


def templates(cfg: CfgNode) -> list[str]:
    """Return the prompt templates: DATASET.TEMPLATES, else DATASET.TEMPLATE, else the set's own.

    Those of single clients are apart (``own.sentences.read_client_templates``).

    Raises:
        ConfigError: a template without ``{}``.
        DataError: a file of templates that cannot be used.
    """
    template, file = cfg.DATASET.TEMPLATE, cfg.DATASET.get("TEMPLATES", "")
    if file:
        from fedvlm.data.own.sentences import read_templates  # start-up: for such a file only

        shared = read_templates(file)
        if shared:
            return shared
    if not template:
        info = dataset_info(cfg.DATASET.NAME)
        return [info.template if info else DEFAULT_TEMPLATE]
    texts = [template] if isinstance(template, str) else list(template)
    for text in texts:
        if text.count("{}") != 1:
            raise ConfigError(f"DATASET.TEMPLATE '{text}' must hold {{}} once, for the class name")
    return texts


def _read_known(info: DatasetInfo, cfg: CfgNode) -> DatasetBase:
    root = find_root(_builtin_root(info, cfg) if info.builtin else cfg.DATASET.ROOT)
    if spells_layout(info, cfg):
        data = read_by_config(cfg, root)
    else:
        if left := cfg.DATASET.get("LEAVE_OUT", ()):
            raise ConfigError(
                f"DATASET.LEAVE_OUT {left[0]}: folders are left out of sets of your own only, and "
                f"{info.name} is read as the known set; give its folder another name and read it "
                "with --images, or drop the key")
        folder = folder_of(info, cfg)
        layouts = (*layouts_of(info), *prepared_layouts(info, root, folder, cfg))
        layout = choose(layouts, root, folder)
        if layout is None:
            raise DataError(explain_absence(info, layouts, root, folder) + _HINT)
        data = layout.read(layout.place(root, folder), info)
        if len(layouts) > 1:
            data.notes.append(f"{info.name}: layout '{layout.name}'")
        if not layout.published:
            data.notes.append(f"{info.name}: not the published split ({layout.name})")
        if cfg.DATASET.get("TEST_SHARE", 0.0):
            data.notes.append(f"{info.name}: {_UNSHARED} a known set keeps its own split")
    data = _checked(info.name, data)
    data.notes += compare_with_catalog(info, data)
    return data


def folder_of(info: DatasetInfo, cfg: CfgNode) -> str:
    """Return DATASET.DIR; empty where it repeats the set's own, which shuts no other folder out."""
    return "" if info.folder == cfg.DATASET.DIR else str(cfg.DATASET.DIR)


def compare_with_catalog(info: DatasetInfo, data: DatasetBase) -> list[str]:
    """Return notes on where what was read differs from the catalog."""
    images = data.all()
    sizes = {part: len(data.parts[part]) for part in PARTS}
    base = sum(datum.label < info.base for datum in data.test)
    domains = Counter(data.domain_names[datum.domain] for datum in images if data.domain_names)
    return compare_sizes(info, len({datum.label for datum in images}), sizes, base, domains)


def spells_layout(info: DatasetInfo, cfg: CfgNode) -> bool:
    """Return whether the config spells out another layout than the catalog's."""
    node = cfg.DATASET
    config = (fold(node.FORMAT), node.IMAGE_DIR, node.SPLIT_FILE)
    catalog = (info.form, info.image_dir, info.split_file)
    return any(value not in ("", row) for value, row in zip(config, catalog, strict=True))


def read_by_config(
    cfg: CfgNode, root: Path, faults: list[str] | None = None, whole: bool = True
) -> DatasetBase:
    """Read a set, known or not, in the layout that the config spells out.

    Raises:
        ConfigError: the config does not say how it is laid out.
        DataError: something is missing on disk or inconsistent.
    """
    node, info = cfg.DATASET, dataset_info(cfg.DATASET.NAME)
    name, source = (info.name, info.source) if info else (node.NAME, "")
    usual = info.folder if info else ""
    folder = find(root, node.DIR or usual, f"the folder of {name} (DATASET.DIR)", source=source)
    named = info is None or node.SPLIT_FILE
    form = _format(cfg, _form_of(node.SPLIT_FILE) if named else info.form if info else "")
    split_file, image_dir = node.SPLIT_FILE, node.IMAGE_DIR
    left = tuple(map(one_form, node.get("LEAVE_OUT", ())))
    renames, drop = _names_of(cfg, folder), left
    bare = one_form(str(node.get("UNLABELLED", "")))
    if info is not None:
        split_file = split_file or (info.split_file if form == "coop" else "")
        image_dir = image_dir or info.image_dir
        renames, drop = info.renames | renames, (*info.drop, *drop)
    listed = form in _TABLES or form == "coop" or (form == TEXTS and bool(split_file))
    _refuse_absent(left, folder, listed)
    files = _split_files(name, folder, form, split_file, source) if listed else []
    images = folder
    if listed or form in ("folders", "domains"):
        what = f"the image folder of {name} (DATASET.IMAGE_DIR)"
        images = find(folder, image_dir, what, source=source if listed else "")
    data = reader_of("table" if form in _TABLES else form)(folder, CopyInfo(
        name, images, tuple(files), renames, drop, test_share=float(node.get("TEST_SHARE", 0.0)),
        seed=int(cfg.DATA_SEED), faults=faults, clients_by=node.get("CLIENTS_BY", ""),
        groups=node.get("GROUPS", ""), columns=node.get("COLUMNS", ""),
        labels=node.get("LABELS", ""), captions=node.get("CAPTIONS", ""),
        topics=int(node.get("TOPICS", 1)), unlabelled=bare, whole=whole,
        unpacked=cache_dir(cfg) / "fedvlm" / "unpacked" if form in _TABLES else None,
    ))  # fmt: skip
    if listed:
        _refuse_listed(left, data)
    data.whole = whole
    if form in _WITH_TEST and node.get("TEST_SHARE", 0.0):
        data.notes.append(f"{name}: {_UNSHARED} DATASET.FORMAT {form} says which these are")
    if form == "coop" and files[0].name == prepared_name(name):
        data.notes.append(f"{name}: not the published split ({files[0].name})")
    return data


def _refuse_absent(drop: Sequence[str], folder: Path, listed: bool) -> None:
    """Refuse to leave out what is no folder: a slip of the pen would train on it.

    Args:
        listed: the samples are in a table or a split file.
    """
    level, there = [folder], set[str]()
    for _ in range(_LEVELS if drop else 0):
        level = [place / name for place in level for name in subfolders(place)]
        there |= {one_form(place.name) for place in level}
        if there.issuperset(drop):
            return
    if strange := [name for name in drop if name not in there]:
        raise ConfigError(
            f"DATASET.LEAVE_OUT {strange[0]}: {folder} has no such folder"
            f"{did_you_mean(strange[0], there)} (found: {first_names(sorted(there))})"
            + ("; of a table take the lines out" if listed else "")
        )


def _refuse_listed(drop: Sequence[str], data: DatasetBase) -> None:
    """Refuse to leave out folders of what a table or a split file lists, which is read whole."""
    for d in [*data.all(), *data.unlabelled] if drop else []:
        if found := {*drop}.intersection(map(one_form, d.key.split("/")[:-1])):
            raise ConfigError(
                f"DATASET.LEAVE_OUT {min(found)}: the list names {data.kind}s of that folder "
                f"(first: {d.key}): take these lines out of it")


def check_holders(data: DatasetBase, clients_by: str, groups: str) -> None:
    """Refuse columns that this layout cannot have, groups on two sides, and less than two clients.

    Raises:
        ConfigError: neither a table nor a pattern of paths.
        DataError: the clients or groups that the data say cannot be used.
    """
    for key, flag, known in (
        (clients_by, "--clients-by", any(d.client for d in data.all())),
        (groups, "--groups", any(d.group is not None for d in data.all())),
    ):
        if key and not known and dataset_info(data.name) is not None:
            raise ConfigError(
                f"{flag} {key}: {data.name} is a known set, which is read without it: drop {flag} "
                f"(--partition deals the {data.kind}s), or name a column of a table of its "
                f"{data.kind}s: --images TABLE {flag} COLUMN")
        if key and not known:
            word = "{client}" if flag == "--clients-by" else "{group}"
            raise ConfigError(
                f"{flag} {key}: {data.name} as it is read here does not say it: name a column of "
                f"a table of its {data.kind}s, or a pattern of their paths ({flag} '{word}/*'); a "
                "feature pack has no names of clients (leave the flag out and give the "
                "partition.json of a run as FED.INDEX_FILE)"
            )
    if groups:
        from fedvlm.data.whole_groups import refuse_torn  # start-up: for groups only

        refuse_torn(data.parts, data.name)
        if not data.test:
            number = len({d.group for d in data.all()} - {None})
            data.notes.append(
                f"--groups {groups}: whole groups ({number}) leave no test {data.kind}, so that "
                "results have no test accuracy: name a column with more and smaller groups, or "
                "give a test part")
    if clients_by:
        notes = holder_notes(data, clients_by)
        data.notes[:] = [*notes, *data.notes] if ONE_CLASS in notes else [*data.notes, *notes]


def holder_notes(data: DatasetBase, clients_by: str) -> list[str]:
    """Return what is odd in the clients that the data say.

    Raises:
        DataError: less than two of them have training images.
    """
    everyone = {d.client for d in data.all()} - {""}
    if len(data.client_names) < 2:
        raise DataError(
            f"{data.name}: --clients-by {clients_by}: there is one client only"
            f"{f' with training {data.kind}s' if len(everyone) > 1 else ''}; a federation needs "
            f"two: name another column, or deal the {data.kind}s with --partition"
        )
    notes = []
    bare = sort_names(everyone - set(data.client_names))
    if bare:
        notes.append(f"--clients-by {clients_by}: {len(bare)} of {len(everyone)} have no training "
                     f"{data.kind} and are no clients; their {data.kind}s count for the shared "
                     "model only")
    classes: dict[str, set[int]] = {}
    for d in data.train_x:
        classes.setdefault(d.client, set()).add(d.label)
    single = [c for c in data.client_names if len(classes.get(c, ())) == 1]
    own = not (data.label_names or data.captioned) and all(
        classes.get(d.client, {d.label}) == {d.label} for d in data.test)
    if own and len(single) == len(data.client_names):
        notes.append(ONE_CLASS)
    elif single:
        notes.append(f"--clients-by {clients_by}: {len(single)} of {len(data.client_names)} "
                     "clients have images of one class only: they can learn no boundary alone")
    return notes


def untested_words(clients: Sequence[int], names: Sequence[str] = ()) -> str:
    """Return a sentence on clients without a test image; empty where there are none.

    Args:
        clients: their numbers.
        names: of all clients, for a screen of this machine only; empty for what a file keeps.
    """
    if not clients:
        return ""
    who = ", ".join(f"{k} ({names[k]})" if names else str(k) for k in clients[:_LISTED])
    if len(clients) == 1:
        return (f"client {who} has no test image: it is in no accuracy, and whether it gains is "
                "not known")
    more = f" and {len(clients) - _LISTED} more" if len(clients) > _LISTED else ""
    return (f"clients {who}{more} have no test image: they are in no accuracy, and whether they "
            "gain is not known")


def name_untested(
    notes: Sequence[str], clients: Sequence[int], names: Sequence[str]
) -> list[str]:
    """Return notes with the clients' names in that of ``untested_words``; for a screen only."""
    plain, named = untested_words(clients)[1:], untested_words(clients, names)[1:]
    return [note.replace(plain, named) if plain else note for note in notes]


def _names_of(cfg: CfgNode, folder: Path) -> dict[str, str]:
    """Return the class names of DATASET.NAMES_FILE by folder or label; none without one."""
    file = cfg.DATASET.get("NAMES_FILE", "")
    if not file:
        return {}
    from fedvlm.data.formats.class_names import read_class_names  # start-up: for such a file only

    return read_class_names(find(folder, file, "DATASET.NAMES_FILE", file=True))


def _form_of(split_file: str) -> str:
    """Return the format that a config without DATASET.FORMAT means."""
    ending = split_file.lower().rpartition(".")[2]
    if ending in ("csv", "jsonl", "parquet"):
        return ending
    return "coop" if split_file else "folders"


def _builtin_root(info: DatasetInfo, cfg: CfgNode) -> str:
    """Return the root of a set that this project renders; the user's own copy of it goes first."""
    root: str = cfg.DATASET.ROOT
    if root and (user_path(root) / (cfg.DATASET.DIR or info.folder)).is_dir():
        return root
    from fedvlm.data.builtin.sets import materialise  # start-up: Pillow and the renderer

    place = builtin_root(cfg)
    try:
        return str(materialise(info.builtin, place).parent)
    except OSError as error:
        raise DataError(
            f"cannot render {info.name} into {place}: {error.strerror or error}; set CACHE_DIR or "
            "$FEDVLM_CACHE to a folder that can be written"
        ) from error


def _format(cfg: CfgNode, default: str) -> str:
    form = cfg.DATASET.FORMAT or default
    if not cfg.DATASET.FORMAT and form not in FORMATS:
        raise ConfigError(
            f"{cfg.DATASET.NAME}: DATASET.IMAGE_DIR alone does not define the layout of this copy; "
            f"leave it empty, or set DATASET.FORMAT too ({', '.join(FORMATS)})"
        )
    known = {fold(name): name for name in FORMATS}
    if fold(form) not in known:
        raise ConfigError(
            f"unknown DATASET.FORMAT '{form}'{did_you_mean(form, FORMATS)} "
            f"(known: {', '.join(FORMATS)})"
        )
    return known[fold(form)]


def _split_files(
    name: str, folder: Path, form: str, split_file: str, source: str
) -> list[Path]:
    """Return the files that DATASET.SPLIT_FILE names, ``a,b`` for several tables."""
    if not split_file:
        raise ConfigError(f"{name}: DATASET.FORMAT {form} needs DATASET.SPLIT_FILE")
    words = split_file.split(",") if form != "coop" else [split_file]
    paths = []
    for word in (w.strip() for w in words):
        if not (folder / word).is_file():
            content = describe_content(folder)
            where = f"; get it from {source}" if source else ""
            other = ("leave DATASET.SPLIT_FILE out to read class folders of texts" if form == TEXTS
                     else "set DATASET.FORMAT folders to use the image tree with a split of this "
                     "project's own")
            raise DataError(
                f"{name}: the split file {folder / word} (DATASET.SPLIT_FILE) is missing and "
                f"none is made automatically; found there: {content}{where}, or {other}"
            )
        paths.append(find(folder, word, f"the split file of {name}", file=True))
    return paths


def _checked(name: str, data: DatasetBase) -> DatasetBase:
    """Give the lists that a reader got their set's name, and check them."""
    data.name = name
    data.check()
    return data


# ---- feature packs --------------------------------------------------------------------------
def pack_of(cfg: CfgNode) -> Path | None:
    """Return the pack that serves the set of a config; None where images do, or nothing.

    ``--root FILE`` is a pack. ``--root DIR`` serves a set from ``DIR/<set>.pack.safetensors`` where
    no images of it lie there; ``<set>.<anything>.pack.safetensors`` are packs of several backbones,
    of which the run takes the one made with its own.

    Raises:
        ConfigError: several packs of the set, and none or more than one of the run's backbone.
        DataError: one of several is none.
    """
    node = cfg.DATASET
    root = user_path(node.ROOT)
    if not node.ROOT.strip() or root.is_file():
        return pack_root(node.ROOT)
    packs = [path for path in packs_in(root) if fold(stem_of(path)) in _pack_names(node.NAME)]
    if not packs or _has_images(cfg, root):
        return None
    if len(packs) == 1:
        return packs[0]
    from fedvlm.data.packs.place import about_pack  # start-up: for packs only

    backbone = cfg.MODEL.BACKBONE.NAME if "MODEL" in cfg else ""
    fitting = [path for path in packs if fold(about_pack(path).backbone) == fold(backbone)]
    if len(fitting) != 1:
        raise ConfigError(
            f"{root} has {len(packs)} packs of {node.NAME} ({', '.join(p.name for p in packs)}), "
            f"{len(fitting) or 'none'} of them of backbone '{backbone}'; give one: --root "
            f"{packs[0]}"
        )
    return fitting[0]


def stem_of(path: Path) -> str:
    """Return the set in a pack's file name: what is before the first dot."""
    return path.name.removesuffix(PACK_SUFFIX).partition(".")[0]


def _pack_names(name: str) -> set[str]:
    """Return the folded names under which a pack of a set can lie."""
    info = dataset_info(name)
    words = (name, info.name, info.folder, *info.aliases) if info else (name,)
    return {fold(word) for word in words}


def _has_images(cfg: CfgNode, root: Path) -> bool:
    """Tell whether a folder holds the images of the set, which serve every method."""
    node, info = cfg.DATASET, dataset_info(cfg.DATASET.NAME)
    if info is None:
        return bool(node.DIR) and (root / node.DIR).is_dir()
    folder = folder_of(info, cfg)
    layouts = (*layouts_of(info), *prepared_layouts(info, root, folder, cfg))
    return choose(layouts, root, folder) is not None


for _info in CATALOG.values():
    DATASET_REGISTRY.register(_info.name)(partial(_read_known, _info))
