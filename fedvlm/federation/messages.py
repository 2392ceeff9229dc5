"""What a trainer hands back is checked before anybody uses it: keys, shapes, types, weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedvlm.errors import FedvlmError
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.trees import State, Tree, first_non_finite, matching


def check_work(name: str, ctx: Context, out: Any, down: Tree) -> tuple[State, Upload]:
    """Return what ``local`` of trainer ``name`` returned, if it keeps the contract.

    Raises:
        FedvlmError: not (state, Upload), keys outside the shared group and the declared extras,
            a wrong shape or type, state without a client axis, weights that are not one finite
            number >= 0 per client.
    """
    where = f"trainer {name}, round {ctx.round}, {who(ctx)}"
    if not (isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], Upload)):
        raise FedvlmError(f"{where}: local returned {type(out).__name__}, not (state, ctx.upload)")
    state, upload = out
    _check_keys(where, ctx, upload)
    _check_axis(where, ctx, state)
    for tensor, value in upload.params.items():
        if tensor not in down:
            raise FedvlmError(f"{where}: the download lacks '{tensor}' of the shared group")
        if value.shape != down[tensor].shape:
            raise FedvlmError(
                f"{where}: upload '{tensor}' has shape {list(value.shape)}, "
                f"the download had {list(down[tensor].shape)}"
            )
        if value.dtype != down[tensor].dtype:
            raise FedvlmError(
                f"{where}: upload '{tensor}' is {value.dtype}, the download was "
                f"{down[tensor].dtype}"
            )
    _check_weight(where, ctx, upload.weight)
    return state, upload


def _check_keys(where: str, ctx: Context, upload: Upload) -> None:
    stray = set(upload.params) - set(ctx.groups.shared)
    stray |= set(upload.extras) - set(matching(upload.extras, ctx.extras))
    missing = set(ctx.groups.shared) - set(upload.params)
    if stray:
        raise FedvlmError(
            f"{where}: uploads {sorted(stray)} outside the shared group and the declared extras"
        )
    if missing:
        raise FedvlmError(f"{where}: does not upload {sorted(missing)} of the shared group")


def _check_axis(where: str, ctx: Context, state: State) -> None:
    """Refuse leaves that would be cut along another axis than the clients'."""
    for slot, tree in state.items():
        for name, value in tree.items():
            if value.dim() == 0 or len(value) != ctx.k:
                raise FedvlmError(
                    f"{where}: '{name}' in slot '{slot}' of the new state has shape "
                    f"{list(value.shape)}, without a leading axis of {ctx.k} clients"
                )


def _check_weight(where: str, ctx: Context, weight: Tensor) -> None:
    if weight.shape != (ctx.k,):
        raise FedvlmError(
            f"{where}: the upload's weight has shape {list(weight.shape)}, not one per client"
        )
    for client, value in zip(ctx.clients, weight.tolist(), strict=True):
        if not (0 <= value < float("inf")):
            raise FedvlmError(f"{where}: client {client} has weight {value}, not a number >= 0")


def check_finite(ctx: Context, k: int, state: State, params: Tree) -> None:
    """Apply the non-finite policy to one client's new state and its message.

    Raises:
        DivergedError: policy ``abort``.
    """
    client = ctx.clients[k]
    if client in ctx.failed:
        return
    bad = first_non_finite(params)
    if bad is not None:
        ctx.fail(client, f"update '{bad}'")
        return
    for slot, tree in state.items():
        bad = first_non_finite(tree)
        if bad is not None:
            ctx.fail(client, f"'{bad}' in slot '{slot}' of its new state")
            return


def who(ctx: Context) -> str:
    """Return the clients of a chunk for a message."""
    return f"client{'s' if ctx.k > 1 else ''} {', '.join(map(str, ctx.clients))}"
