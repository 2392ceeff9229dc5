"""The page of an hour on a GPU, from the JSON files of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evidence.gpu.measure import LOSS

Records = Mapping[str, dict[str, Any]]
WARNING = ("**Made on the pretend device: it shows that the parts run. Seconds, memory and rates "
           "mean nothing.**")


def page_of(records: Records, pretend: bool = False) -> tuple[str, bool]:
    """Return (the page in Markdown, whether nothing failed and all bits are equal)."""
    lines = ["# An hour on a GPU", "", *([WARNING, ""] if pretend else [])]
    card = records.get("card", {})
    if "rates" in card:
        rates = ", ".join(f"{name} {rate / 1e12:.3g}" for name, rate in card["rates"].items())
        lines += [f"{card['name']}, {card['memory'] / 2**30:.0f} GiB, PyTorch {card['torch']}, "
                  f"CUDA {card['cuda']}. Matrix products, TFLOP/s: {rates}. Copies: "
                  f"{card['copy'] / 1e9:.3g} GB/s. A kernel's launch: {card['launch'] * 1e6:.2g} "
                  "us.", ""]
    methods, equal = _methods(records.get("methods", {}))
    lines += methods + _jobs(records) + _speed(records, card.get("rates", {}))
    for name, row in records.items():
        if name.startswith("beside-") and "failed" not in row:
            lines += [f"`{row['command']}` ({row['part']}): {row['seconds']:.1f} s", ""]
    failed = [f"- {name}: {row['failed']}" for name, row in records.items() if "failed" in row]
    lines += ["Failed:", "", *failed, ""] if failed else []
    return "\n".join(lines), equal and not failed


def _methods(record: dict[str, Any]) -> tuple[list[str], bool]:
    rows = record.get("rows")
    if rows is None:
        return [], True
    broken = {n: r["failed"] for n, r in rows.items() if "failed" in r}
    differ = [n for n, r in rows.items() if "failed" not in r and not r["same_bits"]]
    losses = {n: r["loss"] for n, r in rows.items() if r.get("loss") is not None}
    far = {n: v for n, v in losses.items() if v > LOSS}
    lines = [f"Methods: {len(rows)} run twice on the card and once on the processor, "
             f"{len(rows) - len(broken) - len(differ)} with equal bits on the card."]
    if losses:
        lines.append(f"Losses differ from the processor's by at most {max(losses.values()):.1e} "
                     f"(relative); {len(far)} above {LOSS:g}"
                     + (": " + ", ".join(f"{n} {v:.1e}" for n, v in far.items()) if far else "")
                     + ".")
    lines += [f"Bits differ: {', '.join(differ)}."] if differ else []
    lines += [f"- {name} failed: {why}" for name, why in broken.items()]
    if record["unreached"]:
        lines.append(f"Not reached in time: {', '.join(record['unreached'])}.")
    return [*lines, ""], not differ and not broken


def _jobs(records: Records) -> list[str]:
    lines = []
    for name, row in records.items():
        if "steps" in row and "failed" not in row:
            steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in row["steps"].items())
            lines += [f"Whole job ({name}), seconds: {steps}. A resumed run has equal bits.", ""]
    return lines


def _speed(records: Records, rates: Mapping[str, float]) -> list[str]:
    rows = [row for row in records.values() if "fast" in row]
    if not rows:
        return []
    lines = ["| method | precision | clients | at once | s a round | with --fast | "
             "order costs | ms a client | GiB | TFLOP a round | share of peak | "
             "plain loops, ms a client | ratio |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        fast, peak = row["fast"], rates.get(row["precision"], 0.0)
        share = f"{100 * fast['flops'] / fast['seconds'] / peak:.1f} %" if peak else "-"
        free = loops = "- | -"  # time did not suffice
        if "any" in row:
            free = f"{row['any']['seconds']:.3g} | x {row['order']:.2f}"
        if "plain" in row:
            loops = f"{1e3 * row['plain']['per_client']:.3g} | {row['ratio']:.1f}"
        lines.append(
            f"| {row['method']} | {row['precision']} | {fast['clients']} | {fast['chunk']} | "
            f"{fast['seconds']:.3g} | {free} | {1e3 * fast['per_client']:.3g} | "
            f"{fast['memory'] / 2**30:.1f} | {fast['flops'] / 1e12:.3g} | {share} | {loops} |")
    return [*lines, ""]
