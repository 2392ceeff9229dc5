"""Imports inside functions, and the reason of each: ``tests/test_house.py`` holds the table."""

from __future__ import annotations

from collections.abc import Mapping

# The one table of imports inside functions: file -> reason -> modules. A reason is an optional
# package, or start-up time: what a command that does not need the module is spared.
WAITING: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "fedvlm/api/frames.py": {
        "optional: fedvlm[pandas]": ("pandas",),
    },
    "fedvlm/api/model.py": {
        "start-up: open_clip, 3 s": ("fedvlm.export.write",),
        "start-up: for captions only": ("fedvlm.models.features.texts",),
    },
    "fedvlm/api/evaluate.py": {
        "start-up: for captions only": (
            "fedvlm.evaluation.caption_rows", "fedvlm.models.features.texts",
        ),
    },
    "fedvlm/api/rebuild.py": {
        "start-up: such runs only": ("fedvlm.data.own.sentences",),
    },
    "fedvlm/cli/data/_findings.py": {
        "start-up: rich, for a terminal only": ("rich.console",),
        "start-up: rich": ("rich.table", "rich.text", "fedvlm.console.live"),
    },
    "fedvlm/cli/data/doctor.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.cli.data._findings",),
        "start-up: PyTorch": ("fedvlm.data.doctor.examine",),
    },
    "fedvlm/cli/data/features.py": {
        "start-up: NumPy, 0.15 s": ("fedvlm.job.resolve",),
        "start-up: PyTorch, 2 s": (
            "fedvlm.cli.data._encode", "fedvlm.cli.data._pack", "fedvlm.cli.data._stores",
        ),
        "start-up: PyTorch": ("fedvlm.models.features.store",),
    },
    "fedvlm/cli/main.py": {
        "start-up: NumPy, for a mistake only": ("fedvlm.cli.unknown",),
    },
    "fedvlm/cli/methods/check.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.check.invariants",),
    },
    "fedvlm/cli/methods/config.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.federation.discovery",),
    },
    "fedvlm/cli/methods/list.py": {
        "start-up: PyTorch, 2 s": (
            "fedvlm.cli.methods.config", "fedvlm.config.option", "fedvlm.federation.discovery",
        ),
        "start-up: NumPy, for a mistake only": ("fedvlm.job.kinds",),
    },
    "fedvlm/cli/models/_run.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.api.run",),
    },
    "fedvlm/cli/models/adapt.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.api.adapt",),
        "start-up: PyTorch": ("fedvlm.export.write",),
    },
    "fedvlm/cli/models/evaluate.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.api.evaluate",),
    },
    "fedvlm/cli/models/export.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.export.write",),
    },
    "fedvlm/cli/results/audit.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.api.audit",),
        "start-up: PyTorch": ("fedvlm.federation.discovery",),
        "start-up: jinja": ("fedvlm.report.pages.audit",),
    },
    "fedvlm/cli/results/figures.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.cli.results._looks",),
        "start-up: 1 s of matplotlib": (
            "fedvlm.report.figures.style", "fedvlm.report.figures.catalog",
            "fedvlm.report.figures.selection",
        ),
    },
    "fedvlm/cli/results/forget.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.api.forget",),
        "start-up: PyTorch": ("fedvlm.federation.discovery",),
        "start-up: where it is asked for": ("fedvlm.api.approximate",),
    },
    "fedvlm/cli/results/report.py": {
        "start-up: 1 s of matplotlib": ("fedvlm.report.pages.sweep", "fedvlm.report.pages.run"),
    },
    "fedvlm/cli/results/table.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.sweep.tune.appendix",),
        "start-up: PyTorch": ("fedvlm.sweep.tune.tuned",),
    },
    "fedvlm/cli/results/verify.py": {
        "start-up: NumPy, 0.15 s": ("fedvlm.cli.results._pairs",),
        "start-up: PyTorch, 2 s": ("fedvlm.api.replay",),
    },
    "fedvlm/advise/gather.py": {
        "start-up: for a simulated text tower only": ("fedvlm.job.images.texts",),
    },
    "fedvlm/cli/run/advise.py": {
        "start-up: for the map only": ("fedvlm.advise.like",),
        "start-up: NumPy, 0.15 s": ("fedvlm.job.resolve",),
        "start-up: PyTorch, 2 s": ("fedvlm.advise.judge",),
    },
    "fedvlm/cli/run/reproduce.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.recipes.recipe",),
        "start-up: PyTorch": (
            "fedvlm.recipes.trial", "fedvlm.sweep.cells", "fedvlm.sweep.run",
            "fedvlm.recipes.outlay", "fedvlm.recipes.acceptance", "fedvlm.recipes.kept",
            "fedvlm.recipes.order", "fedvlm.models.load.weights",
        ),
    },
    "fedvlm/cli/site/readmit.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.api.rebuild",),
        "start-up: PyTorch": ("fedvlm.job.sites.wishes",),
    },
    "fedvlm/cli/run/run.py": {
        "start-up: NumPy, 0.15 s": ("fedvlm.job.resolve",),
        "start-up: PyTorch, 2 s": ("fedvlm.job.results.demo", "fedvlm.job.run"),
    },
    "fedvlm/cli/run/sweep.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.sweep.cells",),
        "start-up: PyTorch": ("fedvlm.sweep.run", "fedvlm.sweep.jobs", "fedvlm.sweep.queue"),
    },
    "fedvlm/cli/run/tune.py": {
        "start-up: PyTorch, 2 s": ("fedvlm.sweep.tune.run",),
        "start-up: PyTorch": ("fedvlm.sweep.tune.defaults", "fedvlm.sweep.tune.report"),
    },
    "fedvlm/cli/site/_serve.py": {
        "start-up: PyTorch, 2 s": (
            "fedvlm.distributed.site_yaml", "fedvlm.job.sites.resident",
        ),
    },
    "fedvlm/cli/site/_make.py": {
        "start-up: NumPy, 0.15 s": ("fedvlm.data.own.party", "fedvlm.job.resolve"),
        "start-up: NumPy, as _party": ("fedvlm.data.own.site",),
        "start-up: NumPy, as resolve": ("fedvlm.data.federated", "fedvlm.data.own.site"),
        "start-up: PyTorch, 2 s": ("fedvlm.distributed.site_yaml",),
        "start-up: PyTorch": ("fedvlm.federation.plan",),
    },
    "fedvlm/cli/tool/help.py": {
        "start-up: NumPy, for a mistake only": ("fedvlm.cli.unknown",),
    },
    "fedvlm/compat/data.py": {
        "start-up: 1 s, for files of data sets only": ("torchvision",),
    },
    "fedvlm/console/notebook.py": {
        "optional: ipython, which a notebook brings": ("IPython.display",),
    },
    "fedvlm/console/screen.py": {
        "start-up: rich, 0.1 s": ("fedvlm.console.live",),
    },
    "fedvlm/core/rng.py": {
        "start-up: 1 s; what only draws shots need not load it": ("torch",),
    },
    "fedvlm/core/stats.py": {
        "start-up: 0.1 s of verbs that show no spread over clients": ("numpy",),
        "start-up: 0.1 s of tables without intervals": ("scipy.special",),
    },
    "fedvlm/core/threads.py": {
        "optional: not on Windows": ("resource",),
    },
    "fedvlm/data/builtin/sets.py": {
        "start-up: scikit-learn, for Digits only": ("sklearn.datasets",),
    },
    "fedvlm/data/datasets.py": {
        "start-up: for corrupted images only": ("fedvlm.data.corruption",),
        "start-up: Pillow and the renderer": ("fedvlm.data.builtin.sets",),
        "start-up: for packs only": ("fedvlm.data.packs.place",),
        "start-up: for such a file only": (
            "fedvlm.data.formats.class_names", "fedvlm.data.own.sentences",
        ),
        "start-up: for groups only": ("fedvlm.data.whole_groups",),
        "start-up: for joined parts only": ("fedvlm.data.formats.parts",),
    },
    "fedvlm/data/federated.py": {
        "start-up: for such a file only": (
            "fedvlm.data.fewshot_file", "fedvlm.data.own.sentences",
        ),
        "start-up: for such images only": ("fedvlm.data.partition.unlabelled",),
    },
    "fedvlm/data/formats/table_files.py": {
        "start-up: for LEAF's files only": ("PIL",),
    },
    "fedvlm/data/partition/kinds.py": {
        "start-up: for groups only": ("fedvlm.data.whole_groups",),
    },
    "fedvlm/data/get/annotations.py": {
        "start-up: scipy, for the annotations of two sets only": ("scipy.io",),
    },
    "fedvlm/data/get/offers.py": {
        "start-up: a second, for downloads only": ("torchvision",),
    },
    "fedvlm/distributed/flower/keys.py": {
        "optional: fedvlm[flower]": (
            "cryptography", "cryptography.hazmat.primitives",
            "cryptography.hazmat.primitives.asymmetric", "cryptography.x509.oid",
        ),
    },
    "fedvlm/distributed/site.py": {
        "start-up: runs with secure sums only": ("fedvlm.distributed.sums.site",),
    },
    "fedvlm/distributed/sums/masks.py": {
        "optional: fedvlm[secure]": (
            "cryptography", "cryptography.exceptions",
            "cryptography.hazmat.primitives.asymmetric.x25519",
            "cryptography.hazmat.primitives.ciphers",
            "cryptography.hazmat.primitives.ciphers.aead",
            "cryptography.hazmat.primitives.ciphers.algorithms",
            "cryptography.hazmat.primitives.hashes", "cryptography.hazmat.primitives.kdf.hkdf",
        ),
    },
    "fedvlm/job/sites/sums.py": {
        "start-up: runs with secure sums only": (
            "fedvlm.distributed.sums.masks", "fedvlm.distributed.sums.server",
        ),
    },
    "fedvlm/distributed/flower/door.py": {
        "optional: fedvlm[flower]": ("httpx", "uvicorn"),
    },
    "fedvlm/distributed/flower/nodes.py": {
        "optional: fedvlm[flower]": (
            "cryptography.hazmat.primitives", "flwr.cli.flower_config", "flwr.cli.utils",
            "flwr.proto.control_pb2",
        ),
    },
    "fedvlm/distributed/flower/relay/node.py": {
        "optional: fedvlm[flower]": (
            "flwr.app", "flwr.app.error", "flwr.common.constant", "flwr.proto.runtime_pb2",
            "flwr.supercore.constant", "flwr.supercore.heartbeat", "flwr.supercore.interceptors",
            "flwr.supercore.runtime", "flwr.supernode.cli.flower_supernode",
            "flwr.supernode.runtime.run_clientapp", "httpx",
        ),
    },
    "fedvlm/distributed/flower/relay/client.py": {
        "optional: fedvlm[flower]": ("flwr.app", "flwr.clientapp"),
    },
    "fedvlm/distributed/flower/relay/frames.py": {
        "optional: fedvlm[flower]": ("flwr.app",),
    },
    "fedvlm/distributed/flower/relay/server.py": {
        "optional: fedvlm[flower]": ("flwr.app", "flwr.serverapp"),
    },
    "fedvlm/export/card.py": {
        "start-up: 0.3 s": ("huggingface_hub",),
    },
    "fedvlm/export/formats/onnx_file.py": {
        "optional: fedvlm[onnx]": ("onnx", "onnxruntime"),
    },
    "fedvlm/export/formats/openclip.py": {
        "start-up: 3 s": ("open_clip",),
    },
    "fedvlm/export/formats/peft_folder.py": {
        "start-up: 3 s": ("peft",),
        "start-up: 2 s": ("transformers",),
    },
    "fedvlm/federation/discovery.py": {
        "start-up: torch.fx, for a method over a network": ("fedvlm.federation.toolbox.networks",),
        "start-up: for networks only": ("fedvlm.federation.module_trainer",),
    },
    "fedvlm/federation/toolbox/privacy.py": {
        "optional: fedvlm[dp]": ("dp_accounting", "dp_accounting.rdp"),
    },
    "fedvlm/data/formats/table.py": {
        "start-up: for captions only": ("fedvlm.data.columns.captions",),
        "start-up: for new tables only": ("fedvlm.data.columns.doubts",),
    },
    "fedvlm/federation/trainer.py": {
        "start-up: for captions only": ("fedvlm.federation.toolbox.retrieval",),
    },
    "fedvlm/evaluation/evaluator.py": {
        "start-up: for captions only": ("fedvlm.evaluation.caption_rows",),
        "start-up: for metrics by name only": ("fedvlm.evaluation.named",),
        "start-up: for sets of labels only": ("fedvlm.evaluation.label_rows",),
    },
    "fedvlm/evaluation/meter.py": {
        "start-up: for captions only": ("fedvlm.evaluation.caption_rows",),
        "start-up: for metrics by name only": ("fedvlm.evaluation.named",),
        "start-up: for temperatures only": ("fedvlm.evaluation.calibrated",),
        "start-up: for sets of labels only": ("fedvlm.evaluation.label_rows",),
    },
    "fedvlm/evaluation/scores.py": {
        "start-up: for captions only": ("fedvlm.evaluation.caption_rows",),
        "start-up: for sets of labels only": ("fedvlm.evaluation.label_rows",),
    },
    "fedvlm/job/results/references.py": {
        "start-up: for sets of labels only": ("fedvlm.evaluation.references.by_label",),
    },
    "fedvlm/federation/rounds.py": {
        "start-up: q-FFL only": ("fedvlm.federation.aggregation.fairness",),
        "start-up: such runs only": ("fedvlm.federation.reliability.buffered",),
    },
    "fedvlm/federation/plan.py": {
        "start-up: such runs only": ("fedvlm.federation.reliability.buffered",),
    },
    "fedvlm/job/build.py": {
        "start-up: for class weights only": ("fedvlm.federation.local.balance",),
        "start-up: for captions only": ("fedvlm.job.images.texts",),
        "start-up: for a simulated text tower only": ("fedvlm.job.images.texts",),
        "start-up: for images without a label only": ("fedvlm.job.images.unlabelled",),
        "start-up: on a GPU only": ("fedvlm.models.device",),
        "start-up: runs with attackers only": ("fedvlm.evaluation.backdoor",),
        "start-up: such runs only": (
            "fedvlm.job.settings.threats", "fedvlm.federation.aggregation.fairness",
            "fedvlm.job.workers.processes",
        ),
    },
    "fedvlm/job/settings/threats.py": {
        "start-up: runs with attackers only": ("fedvlm.federation.reliability.hostile",),
        "start-up: runs with privacy of images only": (
            "fedvlm.federation.toolbox.image_privacy",
        ),
        "start-up: runs with client-level privacy only": (
            "fedvlm.federation.aggregation.client_privacy",
        ),
        "start-up: runs with secure sums only": ("fedvlm.job.sites.sums",),
    },
    "fedvlm/job/data_choice.py": {
        "start-up: for folders of images only": ("fedvlm.data.own.add",),
        "start-up: for packs only": ("fedvlm.data.packs.place",),
        "start-up: for site files only": ("fedvlm.data.own.site",),
    },
    "fedvlm/job/flags.py": {
        "start-up: for a mistake only": ("fedvlm.models.load.names",),
        "start-up: NumPy, for a mistake only": ("fedvlm.job.kinds",),
    },
    "fedvlm/job/record.py": {
        "start-up: where it is asked for": ("fedvlm.job.results.images",),
    },
    "fedvlm/evaluation/references/logistic.py": {
        "start-up: for such runs only": ("fedvlm.federation.local.balance",),
    },
    "fedvlm/job/results/end.py": {
        "start-up: runs with baselines only": ("fedvlm.evaluation.references.suite",),
        "start-up: for metrics by name only": ("fedvlm.evaluation.named",),
        "start-up: where it is asked for": ("fedvlm.job.results.images",),
    },
    "fedvlm/job/run.py": {
        "start-up: for metrics by name only": ("fedvlm.evaluation.named",),
        "start-up: for jobs that train nothing": ("fedvlm.job.dry",),
        "start-up: where they are wanted": ("fedvlm.job.results.references",),
        "start-up: for own sets only": ("fedvlm.job.results.near",),
    },
    "fedvlm/job/resolve.py": {
        "start-up: PyTorch, 2 s": (
            "fedvlm.federation.discovery", "fedvlm.federation.peft_trainer",
            "fedvlm.federation.trainer",
        ),
        "start-up: for such a file only": ("fedvlm.data.formats.class_names",),
    },
    "fedvlm/job/show.py": {
        "start-up: 1 s of matplotlib, where a page is due": (
            "fedvlm.federation.cards", "fedvlm.report.collect", "fedvlm.report.pages.run",
        ),
    },
    "fedvlm/models/backbone.py": {
        "start-up: on a GPU only": ("fedvlm.models.device",),
    },
    "fedvlm/models/load/bert.py": {
        "start-up: 2 s": ("transformers",),
    },
    "fedvlm/models/load/hf_clip.py": {
        "start-up: 2 s": ("transformers",),
        "start-up: 3 s": ("open_clip",),
    },
    "fedvlm/models/load/hf_text.py": {
        "start-up: 0.3 s": ("huggingface_hub",),
    },
    "fedvlm/models/load/names.py": {
        "start-up: 3 s": ("open_clip",),
    },
    "fedvlm/models/load/openclip.py": {
        "start-up: 3 s": (
            "open_clip", "open_clip.model", "open_clip.transform", "open_clip.factory",
            "open_clip.coca_model",
        ),
    },
    "fedvlm/models/load/tiny.py": {
        "start-up: 3 s, only for text beyond ASCII": ("open_clip.tokenizer",),
    },
    "fedvlm/models/load/torchvision.py": {
        "start-up: 1 s": ("torchvision",),
    },
    "fedvlm/models/load/vit.py": {
        "start-up: 3 s": ("open_clip.transformer",),
        "start-up: 1 s": ("timm",),
        "start-up: 2 s": ("transformers",),
    },
    "fedvlm/models/load/weights.py": {
        "start-up: 3 s": ("open_clip.factory", "open_clip.pretrained"),
        "start-up: 0.3 s": ("huggingface_hub",),
        "start-up: 2 s": ("transformers.utils",),
    },
    "fedvlm/models/towers/vision.py": {
        "start-up: for texts as samples only": ("fedvlm.models.towers.encoder",),
        "start-up: for timm's towers only": ("fedvlm.models.towers.trunk",),
    },
    "fedvlm/models/vlmodel.py": {
        "start-up: for adapters only": ("fedvlm.models.stages",),
    },
    "fedvlm/report/compare/runs.py": {
        "start-up: 0.1 s where no logits were kept": ("safetensors", "safetensors.numpy"),
    },
    "fedvlm/report/figures/answers/tsne.py": {
        "start-up: 1 s, for runs that kept their scores": ("sklearn.manifold",)},
    "fedvlm/report/figures/partition.py": {
        "start-up: 1 s; a run's picture needs it not": ("matplotlib.lines",),
    },
    "fedvlm/report/figures/style.py": {
        "start-up: 1 s; a run's picture needs its colours only": (
            "matplotlib", "matplotlib.backends.backend_agg", "matplotlib.figure",
        ),
    },
    "fedvlm/report/statistics/paired.py": {
        "start-up: 1 s of comparisons without a test": ("scipy.stats",),
    },
    "fedvlm/sweep/tune/report.py": {
        "start-up: 1 s of matplotlib": ("fedvlm.sweep.tune.curves",),
    },
    "fedvlm/sweep/tune/study.py": {
        "optional: fedvlm[tune]": ("optuna", "optuna.storages", "optuna.storages.journal"),
    },
    "fedvlm/sweep/queue.py": {
        "optional: fedvlm[slurm]": ("submitit",),
    },
    "fedvlm/sweep/task.py": {
        "optional: fedvlm[slurm]": ("submitit.helpers",),
    },
    "fedvlm/sweep/tune/values.py": {
        "start-up: PyTorch": ("fedvlm.federation.discovery",),
    },
    "fedvlm/sweep/worker.py": {
        "start-up: PyTorch, as all of these": ("fedvlm.job.flags",),
        "start-up: PyTorch": (
            "fedvlm.job.identity", "fedvlm.job.resolve", "fedvlm.job.run", "fedvlm.runs.identity",
            "fedvlm.job.inputs",
        ),
        "start-up: after the number of threads is set": ("torch",),
    },
    "scripts/evidence/bench/bench.py": {
        "start-up: its memory would count in that of scale": ("evidence.bench.fedtv",),
    },
}  # fmt: skip
