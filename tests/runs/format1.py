"""Writes states as fedvlm wrote them before clients' rows had records (format 1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch

from fedvlm.runs.seal import seal_text, sha256
from fedvlm.runs.tensors import to_storable


def save_format_1(
    folder: Path, round_: int, server: Any, clients: Any, extra: Any, *, identity: str
) -> None:
    """Write ``round_`` with every client's tensors beside the server's."""
    keys, forms, places = {}, [], dict[str, int]()

    def add(prefix: str, state: Any) -> int:
        form = {slot: list(tree) for slot, tree in state.items()}
        for slot, tree in state.items():
            keys.update({f"{prefix}|{slot}|{name}": v for name, v in tree.items()})
        if json.dumps(form) not in places:
            places[json.dumps(form)] = len(forms)
            forms.append(form)
        return places[json.dumps(form)]

    layout: dict[str, Any] = {"server": add("server", server), "clients": {}}
    for client, state in clients.items():
        layout["clients"][str(client)] = add(f"client|{client}", state)
    data = safetensors.torch.save(to_storable(keys))
    stem = f"round_{round_:04d}"
    (folder / f"{stem}.safetensors").write_bytes(data)
    (folder / f"{stem}.json").write_text(seal_text({
        "format": 1, "identity": identity, "round": round_, "sha256": sha256(data),
        "bytes": len(data), "layout": layout | {"forms": forms}, "extra": extra,
    }))
    (folder / "index.json").write_text(json.dumps({"format": 1, "states": [stem]}))
