"""``fedvlm features --list`` and ``--clean``: what lies in the feature cache, and tidying it."""

from __future__ import annotations

import math
import time
from pathlib import Path

from fedvlm.console.rows import table_lines
from fedvlm.console.screen import complain, say
from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.models.features.inventory import StoreInfo, list_stores, remove_store

_DAY = 86_400.0


def show_stores(folder: Path, backbone: str = "") -> None:
    """Print a table of the stores in ``folder``.

    Args:
        backbone: only those of this one; '' is all.
    """
    stores = _of_backbone(list_stores(folder), backbone)
    if not stores:
        say(f"no feature store in {folder}")
        return
    say(*table_lines(_row(info) for info in stores),
        f"{len(stores)} store(s), {total_megabytes(stores)} MB, in {folder}")


def clean_stores(
    folder: Path, older_than: float | None, backbone: str, every: bool, dry_run: bool
) -> None:
    """Delete the stores that fit all conditions and are not open; print which.

    Args:
        older_than: days since the last use; None is no condition.
        backbone: only those of this one; '' is no condition.
        every: delete without any condition.
        dry_run: only say what would be deleted.

    Raises:
        ConfigError: no condition, a contradiction, or days that are no number.
    """
    if older_than is None and not (backbone or every):
        raise ConfigError("features --clean needs a choice of stores: --older-than DAYS, "
                          "--backbone X or --all")
    if every and (older_than is not None or backbone):
        raise ConfigError("features --clean: --all cannot be combined with --older-than or "
                          "--backbone; drop one of them")
    latest = math.inf if older_than is None else time.time() - older_than * _DAY
    fitting = [i for i in _of_backbone(list_stores(folder), backbone) if i.used <= latest]
    gone = [info for info in fitting if dry_run or remove_store(info)]
    busy = [info for info in fitting if info not in gone]
    say(*table_lines(_row(info) for info in gone))
    what = "would delete" if dry_run else "deleted"
    say(f"{what} {len(gone)} store(s), {total_megabytes(gone)} MB, in {folder}" if gone
        else f"nothing to delete in {folder}")
    complain(*(f"{info.name[:12]} is in use by a running process: kept" for info in busy),
             prefix="note")


def total_megabytes(stores: list[StoreInfo]) -> str:
    """Return the size of stores together, in 10^6 bytes."""
    return f"{sum(info.size for info in stores) / 1e6:,.1f}"


def transform_words(transform: str) -> str:
    """Return what ``ImageLoader.transform_key`` says, in few words."""
    parts = transform.split(":")
    if parts[0] == "test" and len(parts) > 3:
        return f"test view, {parts[2]} px"
    if parts[0] == "crop-flip" and len(parts) > 3:
        return f"{parts[-1].replace('view', 'view ')} of data {parts[-2].replace('seed', 'seed ')}"
    return transform


def _row(info: StoreInfo) -> dict[str, object]:
    about = info.about
    return {
        "store": info.name[:12], "backbone": about.get("backbone", "-"),
        "weights": about.get("weights", "") or "-",
        "images": f"{info.rows:,}" if not info.state else info.state,
        "of": ", ".join([*([about["stream"]] if "stream" in about else []),
                         transform_words(about.get("transform", "-"))]),
        "numbers": " ".join([*(["bf16 of"] if about.get("dtype") == "bfloat16" else []),
                             *about.get("numerics", "-").split()[:3],
                             *([f"batch {about['batch']}"] if "batch" in about else [])]),
        "MB": f"{info.size / 1e6:,.1f}",
        "last use": time.strftime("%Y-%m-%d %H:%M", time.localtime(info.used)),
    }  # fmt: skip


def _of_backbone(stores: list[StoreInfo], backbone: str) -> list[StoreInfo]:
    """Return those of one backbone."""
    if not backbone or not stores:
        return stores
    those = [i for i in stores if fold(i.about.get("backbone", "")) == fold(backbone)]
    if not those:
        names = sorted({i.about["backbone"] for i in stores if "backbone" in i.about})
        near = did_you_mean(backbone, names)
        raise ConfigError(f"--backbone {backbone}: no store has this "
                          f"backbone{near} (existing: {', '.join(names) or 'none'})")
    return those
