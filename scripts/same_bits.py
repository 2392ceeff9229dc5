"""Record the numbers of short runs of all methods, and compare a changed checkout with them.

    python scripts/same_bits.py record /tmp/before.json           # in a checkout of the parent
    python scripts/same_bits.py compare /tmp/before.json          # in the changed checkout
    python scripts/same_bits.py compare /tmp/before.json fedtv    # these methods alone

Each method runs ``--demo`` with two seeds and four rounds on one thread. Recorded are all tensors
of states and models (SHA-256 over names, types, shapes and bytes) and all numbers of the metrics
and the results but seconds and checksums. ``compare`` prints what differs and ends with 1 if
anything does. 52 methods took about eight minutes of one core. Keep the record outside of the
repository: it belongs to one machine and one PyTorch build.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

ROOT = Path(__file__).resolve().parents[1]
RUN = ("--demo", "--seeds", "1", "2", "--rounds", "4")
UNEQUAL = ("seconds", "seal", "sha256", "digest")  # parts of keys whose values no two runs share


def tensor_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each safetensors file's tensors, by path below the folder."""
    hashes = {}
    for path in sorted(folder.rglob("*.safetensors")):
        total = hashlib.sha256()
        with safe_open(path, "pt") as file:
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name).contiguous()
                total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        hashes[path.relative_to(folder).as_posix()] = total.hexdigest()
    return hashes


def equal_part(value: Any) -> Any:
    """Return a JSON value without what differs between two runs of the same code."""
    if isinstance(value, dict):
        return {key: equal_part(item) for key, item in value.items()
                if not any(part in key for part in UNEQUAL)}
    return [equal_part(item) for item in value] if isinstance(value, list) else value


def numbers(folder: Path) -> dict[str, Any]:
    """Return each round's numbers and the final results, by the path of their file and line."""
    found = {}
    for path in sorted(folder.rglob("metrics.jsonl")):
        for count, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            found[f"{path.relative_to(folder)}:{count}"] = equal_part(json.loads(line))
    for path in sorted(folder.rglob("results.json")):
        record = json.loads(path.read_bytes())
        found[f"{path.relative_to(folder)}"] = equal_part(record["results"])
    return found


def record_of(method: str) -> dict[str, Any]:
    """Run a method of this checkout and return what is compared."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        words = ["federated_main.py", *RUN, "--trainer", method, "--output-dir", folder]
        run = subprocess.run([sys.executable, *words], cwd=ROOT, env=environ,  # noqa: S603
                             capture_output=True, text=True, check=False)
        return {"exit code": run.returncode, "tensors": tensor_hashes(Path(folder)),
                "numbers": numbers(Path(folder))}


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Yield the path of every value that differs, or that only one of the two has."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            if key not in before or key not in after:
                yield f"{where}/{key}: only {'after' if key in after else 'before'}"
            else:
                yield from differences(before[key], after[key], f"{where}/{key}")
    elif before != after:
        yield f"{where}: {json.dumps(before)[:60]} -> {json.dumps(after)[:60]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Record or compare; return 1 where something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path, help="the record, a JSON file")
    parser.add_argument("methods", nargs="*", help="file names in trainers/ (default: all)")
    args = parser.parse_args(argv)
    every = sorted(path.stem for path in (ROOT / "trainers").glob("[a-z]*.py"))
    if args.what == "record":
        record = {method: record_of(method) for method in args.methods or every}
        args.file.write_text(json.dumps(record), encoding="utf-8")
        return 0
    before, wrong = json.loads(args.file.read_bytes()), 0
    for method in args.methods or sorted(before):
        found = list(differences(before[method], record_of(method)))
        print(f"{method}: {'equal' if not found else f'{len(found)} differences'}", flush=True)
        print(*(f"  {line}" for line in found[:5]), sep="\n", end="\n" if found else "")
        wrong += bool(found)
    print(f"{wrong} methods differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
