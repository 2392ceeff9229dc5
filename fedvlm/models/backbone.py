"""Frozen backbones: one class over open_clip's towers, whatever file or loader they came from."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.transform import TransformSpec
from fedvlm.models.towers.layers import cast_linears

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
Tokenizer = Callable[..., Tensor]
_AT_ONCE = 2**16  # numbers compared with their float32 at a time: in the processor's cache


class Backbone:
    """A frozen vision-language model in eval mode; none of its parameters requires a gradient.

    Args:
        model: open_clip's ``CLIP`` or ``CustomTextCLIP`` in fp32 (or float64).
        tokenizer: callable (texts, context_length=) -> ids [n, L]; None: no text tower.
        name, weights: as the user gave them.
        arch: the model config, part of the digest.
        spec: image transform.
        dtype: float32; bfloat16 (linear layers pre-cast, the rest fp32); float64 throughout.
        plain: keep open_clip's own layers; otherwise the image tower's float32 products on a CPU
            take the fastest kernel (equal up to the order of sums).

    Raises:
        ConfigError: a text tower that is not open_clip's own (``encoders`` has the others).
    """

    has_text = True  # False: an image tower alone, for the head view
    standard = True  # both towers are open_clip's CLIP: other libraries can hold them
    encoder: Any = None  # of transformers, as text tower (``encoders.EncoderBackbone``)
    lack: FedvlmError | None = None  # why there is no text tower, where a build has one
    notes: tuple[str, ...] = ()  # remarks for log and results
    text_images: frozenset[str] = frozenset()  # made a simulated text tower, by content key

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer | None = None,
        *,
        name: str,
        weights: str,
        arch: dict[str, Any],
        spec: TransformSpec,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        plain: bool = False,
    ) -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"dtype {dtype} is not one of float32, bfloat16, float64")
        self.name, self.weights, self.transform_spec = name, weights, spec
        self.arch, self.dtype, self.device = arch, dtype, torch.device(device)
        self.model: Any = model.eval().requires_grad_(False)
        self.text_tower: Any = getattr(model, "text", model)
        self.tokenizer: Any = tokenizer
        if self.has_text:
            self._check_texts()
        self.digest = digest_of(model, arch)
        self._read_facts()
        self._live = digest_of(model, arch) if self._remake(plain) else self.digest

    def _read_facts(self) -> None:
        arch, spec = self.arch, self.transform_spec
        self.embed_dim = int(arch["embed_dim"])
        self.text_width = int(self.text_tower.ln_final.normalized_shape[0])
        self.context_length = int(self.text_tower.context_length)
        self.image_size = spec.size
        self.causal = self.text_tower.attn_mask is not None
        self.pool = str(getattr(self.text_tower, "pool_type", None) or self.model.text_pool_type)
        self._read_logits()

    def _read_logits(self) -> None:
        self.logit_scale = math.exp(float(self.model.logit_scale))
        bias = self.model.logit_bias
        self.logit_bias = None if bias is None else float(bias)

    def _check_texts(self) -> None:
        tower = self.text_tower
        words = ("token_embedding", "positional_embedding", "ln_final")
        if not all(hasattr(tower, a) for a in words) or getattr(tower, "cls_emb", None) is not None:
            raise ConfigError(
                f"backbone '{self.name}' has a text tower that is not CLIP's "
                f"({type(tower).__name__}): choose a CLIP or SigLIP backbone"
            )

    def _text_side(self) -> nn.Module:
        """Return the text tower's blocks, of which a bfloat16 backbone keeps a cast copy."""
        side: nn.Module = self.text_tower.transformer if self.has_text else nn.Identity()
        return side

    def _remake(self, plain: bool) -> bool:
        """Bring the towers to their type and device; tell whether layers were replaced."""
        low = self.dtype is torch.bfloat16
        fast = self.dtype is torch.float32 and self.device.type == "cpu" and not plain
        self.model.to(self.device, torch.float64 if self.dtype is torch.float64 else torch.float32)
        # The text tower stays whole: the packed path folds its weights before it casts them.
        self._transformer: Any = self._text_side()
        if low:
            self._transformer = copy.deepcopy(self._transformer)
            cast_linears(self._transformer, self.dtype)
        if low or fast:
            cast_linears(self.model.visual, self.dtype)
        self.model.eval().requires_grad_(False)
        self._transformer.eval().requires_grad_(False)
        return low or fast

    def no_text(self) -> FedvlmError:
        """Return what is to be raised where a text is asked for and there is no text tower."""
        return self.lack or ConfigError(
            f"backbone '{self.name}' has no text tower: use --peft head, or a CLIP backbone"
        )

    @property
    def text_blocks(self) -> Any:
        """The text tower's blocks, as they compute."""
        return getattr(self._transformer, "resblocks", ())

    @property
    def numerics(self) -> str:
        """What decides a feature's last bits beside weights and image: type, kernels, build.

        On CUDA the card and how it computes, too, as in a run's identity.
        """
        kernels, chip = "plain" if self._live == self.digest else "fast", ""
        if self.device.type == "cpu":
            chip = torch.backends.cpu.get_cpu_capability()
        elif self.device.type == "cuda":
            from fedvlm.models.device import cuda_words  # start-up: on a GPU only

            chip = cuda_words(self.device)
        return f"{self.dtype} {kernels} {self.device.type} {chip} torch {torch.__version__}"

    @property
    def feature_dtype(self) -> torch.dtype:
        """Type of features, prompts and trainables: float64 for a float64 backbone, else fp32."""
        return torch.float64 if self.dtype is torch.float64 else torch.float32

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Image features [B, embed_dim], not normalised, of ``pixels`` [B, 3, H, W]."""
        out = self.model.visual(pixels.to(self.device, self.feature_dtype))
        features: Tensor = out[0] if isinstance(out, tuple) else out  # CoCa's has tokens beside it
        return features.to(self.feature_dtype)

    def draw_input(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random samples ``[count, 3, S, S]`` as the image tower reads them."""
        side = self.image_size
        return torch.randn(count, 3, side, side, generator=generator)

    def tokenize(self, texts: Iterable[str], context_length: int | None = None) -> Tensor:
        """Token ids [n, context_length] of texts (cut at the end where too long).

        Raises:
            FedvlmError: there is no text tower; the message says why.
        """
        if not self.has_text:
            raise self.no_text()
        ids: Tensor = self.tokenizer(
            list(texts), context_length=context_length or self.context_length
        )
        return ids.to(self.device)

    def token_ends(self, ids: Tensor) -> Tensor:
        """Position [n] of the end-of-text token in each row of ``ids`` [n, L]."""
        end = _end_id(self.tokenizer)
        # Without a declared end token only CLIP's vocabulary is left: there it is the largest id.
        marks = ids if end is None else (ids == end).int()
        return marks.argmax(dim=-1)

    def eot(self, ids: Tensor) -> Tensor:
        """Position [n] at which the text tower is read out for each row of ``ids`` [n, L]."""
        if self.pool in ("argmax", "eos"):
            return self.token_ends(ids)
        return torch.full_like(ids[:, 0], 0 if self.pool == "first" else ids.shape[1] - 1)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Token embeddings [n, L, text_width], without positions."""
        table: Tensor = self.text_tower.token_embedding.weight
        return table[ids.to(self.device)]

    def encode_embeddings(
        self, emb: Tensor, eot: Tensor, enter: Callable[[int, Tensor], Tensor] | None = None
    ) -> Tensor:
        """Text features [n, embed_dim], not normalised: the oracle for every faster text path.

        Args:
            emb: [n, L, text_width], token embeddings without positions.
            eot: [n], read-out positions (``eot``).
            enter: called with a block's number and what enters it, [n, L, text_width]; what it
                returns enters instead (deep prompts).
        """
        tower, length = self.text_tower, emb.shape[1]
        mask = None if tower.attn_mask is None else tower.attn_mask[:length, :length]
        x = emb + tower.positional_embedding[:length]
        if enter is None:
            x = self._transformer(x, attn_mask=mask)
        else:
            for number, block in enumerate(self.text_blocks):
                x = block(enter(number, x), attn_mask=mask)
        # LayerNorm acts row by row, so reading the row first gives the same number.
        x = tower.ln_final(x[torch.arange(len(x), device=x.device), eot.to(x.device)])
        return project_text(tower.text_projection, x)

    def verify_frozen(self) -> str:
        """Hash the live parameters and buffers (BatchNorm statistics included) once more.

        Returns ``digest`` if they are what they were at loading, another digest if not.
        """
        live = digest_of(self.model, self.arch)
        return self.digest if live == self._live else live


def project_text(projection: Any, x: Tensor) -> Tensor:
    """Apply a text projection: a matrix [width, embed], a Linear, or None (identity)."""
    if projection is None:
        return x
    return projection(x) if isinstance(projection, nn.Module) else x @ projection


def _end_id(tokenizer: Any) -> int | None:
    inner = getattr(tokenizer, "tokenizer", None)
    for owner, field in ((tokenizer, "eot_token_id"), (inner, "eos_token_id")):
        number = getattr(owner, field, None)
        if number is not None:
            return int(number)
    return None


def digest_of(model: nn.Module, arch: dict[str, Any]) -> str:
    """sha256 over the architecture and the sorted names, shapes and values of all tensors.

    Independent of the storage type: values that fit float32 are hashed as float32.
    """
    total = hashlib.sha256(json.dumps(arch, sort_keys=True, default=str).encode())
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for key in sorted(tensors):
        value = tensors[key].detach().cpu()
        total.update(f"{key} {tuple(value.shape)}".encode())
        total = _with_values(total, value.contiguous().reshape(-1))
    return total.hexdigest()


def _with_values(total: Any, flat: Tensor) -> Any:
    """Return the hash with numbers ``[n]`` added: float32 where all fit it, else float64."""
    if not flat.is_floating_point() or flat.dtype == torch.float32 and (
            not flat.sum().isnan() or torch.equal(flat, flat)):  # NaN equals nothing
        total.update(memoryview(flat.numpy()))
        return total
    whole = total.copy()
    for part in flat.split(_AT_ONCE):
        single = part.float()
        if not torch.equal(single.to(part.dtype), part):
            total.update(memoryview(flat.double().numpy()))
            return total
        whole.update(memoryview(single.numpy()))
    return whole
