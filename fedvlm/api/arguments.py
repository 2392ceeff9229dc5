"""What ``train`` takes beside data in memory: the flags of ``fedvlm run``, with their types.

For editors and type checkers; ``tests/api/test_arguments.py`` holds it to the table of flags.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

Word = str | int | float | os.PathLike[str] | None  # None: as if not given


class TrainArguments(TypedDict, total=False):
    """Keyword arguments of ``fedvlm.train``: names of flags with underscores, ``opts`` for keys."""

    root: Word
    dataset: Word
    dataset_config_file: Word
    images: Word
    trainer: Word
    method: Word
    trainer_config_file: Word
    variant: Word
    shots: int | str | None
    subsample_classes: Word
    demo: bool | None
    num_users: int | str | None
    rounds: int | str | None
    local_epochs: int | str | None
    frac: float | str | None
    partition: Word
    beta: float | str | None
    clients_by: Word
    groups: Word
    labels: Word
    captions: Word
    min_images: int | str | None
    held_out_domain: Word
    finetune_epochs: int | str | None
    finetune_train: Word
    peft: Word
    lr: float | str | None
    batch_size: int | str | None
    views: int | str | None
    targets: Sequence[Word] | Word
    eval_every: int | str | None
    seed: int | str | None
    data_seed: int | str | None
    backbone: Word
    weights: Word
    device: Word
    fast: bool | None
    plain: bool | None
    engine: Word
    federation: Word
    workers: int | str | None
    sites_at: Word
    site_file: Word
    class_weights: Word
    metric: Sequence[Word] | Word
    output_dir: Word
    resume: Word
    tag: Word
    continue_elsewhere: bool | None
    draft: bool | None
    sinks: Sequence[Word] | Word
    keep_logits: bool | None
    source_domains: Sequence[Word] | Word
    target_domains: Sequence[Word] | Word
    iid: bool | None
    useall: bool | None
    test_share: float | str | None
    repeat_rate: float | str | None
    test_batch_size: int | str | None
    optim: Word
    momentum: float | str | None
    weight_decay: float | str | None
    gamma: float | str | None
    bottleneck: Word
    n_ctx: Word
    num_prompt: Word
    avg_prompt: Word
    eps: Word
    top_percent: Word
    max_iter: Word
    thresh: Word
    ot: Word
    ctx_init: Word
    num_domain: Word
    feature: Word
    alpha: Word
    logits2: Word
    transforms: Sequence[Word] | Word
    head: Word
    imbalance_train: bool | None
    split_client: bool | None
    model: Word
    temp: Word
    mu: Word
    opts: Mapping[str, Any] | None
