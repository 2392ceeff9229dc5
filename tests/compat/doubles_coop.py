"""A trainer file of CoOp's shape: a context in front of the class names, nothing else trained."""

import torch
import torch.nn as nn
from clip import clip
from clip.simple_tokenizer import SimpleTokenizer as _Tokenizer
from dassl.engine import TRAINER_REGISTRY, TrainerX
from dassl.metrics import compute_accuracy
from dassl.optim import build_lr_scheduler, build_optimizer
from dassl.utils import load_pretrained_weights
from torch.cuda.amp import GradScaler, autocast
from torch.nn import functional as F

_tokenizer = _Tokenizer()


def backbone_of(cfg, design=None):
    path = clip._download(clip._MODELS[cfg.MODEL.BACKBONE.NAME])
    try:
        archive = torch.jit.load(path, map_location="cpu").eval()
        weights = None
    except RuntimeError:
        weights = torch.load(path, map_location="cpu")
    weights = weights or archive.state_dict()
    return clip.build_model(weights, design) if design else clip.build_model(weights)


class TextSide(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.transformer, self.ln_final = model.transformer, model.ln_final
        self.positional_embedding = model.positional_embedding
        self.text_projection, self.dtype = model.text_projection, model.dtype

    def forward(self, prompts, ids, deeper=None):
        x = (prompts + self.positional_embedding.type(self.dtype)).permute(1, 0, 2)
        x = self.transformer(x) if deeper is None else self.transformer([x, deeper, 0])[0]
        x = self.ln_final(x.permute(1, 0, 2)).type(self.dtype)
        return x[torch.arange(x.shape[0]), ids.argmax(dim=-1)] @ self.text_projection


class Context(nn.Module):
    def __init__(self, names, model, n_ctx, size, per_class=False):
        super().__init__()
        assert size == model.visual.input_resolution, "INPUT.SIZE is not the backbone's"
        width = model.ln_final.weight.shape[0]
        lead = (len(names),) if per_class else ()
        ctx = torch.empty(*lead, n_ctx, width, dtype=model.dtype)
        nn.init.normal_(ctx, std=0.02)
        self.ctx = nn.Parameter(ctx)
        names = [n.replace("_", " ") for n in names]
        self.lengths = [len(_tokenizer.encode(n)) for n in names]
        fillers = " ".join(["X"] * n_ctx)
        self.ids = torch.cat([clip.tokenize(f"{fillers} {n}.") for n in names])
        with torch.no_grad():
            rows = model.token_embedding(self.ids).type(model.dtype)
        self.register_buffer("token_prefix", rows[:, :1])
        self.register_buffer("token_suffix", rows[:, 1 + n_ctx:])

    def forward(self, ctx=None):
        ctx = self.ctx if ctx is None else ctx
        if ctx.dim() == 2:
            ctx = ctx.unsqueeze(0).expand(len(self.ids), -1, -1)
        return torch.cat([self.token_prefix, ctx, self.token_suffix], dim=1)


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


class Prompted(nn.Module):
    def __init__(self, model, learner):
        super().__init__()
        self.prompt_learner = learner
        self.image_encoder, self.text_encoder = model.visual, TextSide(model)
        self.logit_scale, self.dtype = model.logit_scale, model.dtype

    def text(self):
        return unit(self.text_encoder(self.prompt_learner(), self.prompt_learner.ids))

    def forward(self, image):
        z = unit(self.image_encoder(image.type(self.dtype)))
        return self.logit_scale.exp() * z @ self.text().t()


class Base(TrainerX):
    """What the doubles share; not registered, so not a method."""

    def check_cfg(self, cfg):
        assert cfg.TRAINER.COOP.PREC in ["fp16", "fp32", "amp"]

    def make(self, model, names):
        node = self.cfg.TRAINER.COOP
        return Prompted(model, Context(names, model, node.N_CTX, self.cfg.INPUT.SIZE[0], node.CSC))

    def build_model(self):
        cfg = self.cfg
        print(f"Loading {cfg.MODEL.BACKBONE.NAME}")
        model = backbone_of(cfg)
        if cfg.TRAINER.COOP.PREC in ("fp32", "amp"):
            model.float()
        self.model = self.make(model, self.dm.dataset.classnames)
        for name, p in self.model.named_parameters():
            if "prompt_learner" not in name:
                p.requires_grad_(False)
        if cfg.MODEL.INIT_WEIGHTS:
            load_pretrained_weights(self.model.prompt_learner, cfg.MODEL.INIT_WEIGHTS)
        self.model.to(self.device)
        learner = self.model.prompt_learner
        self.optim = build_optimizer(learner, cfg.OPTIM)
        self.sched = build_lr_scheduler(self.optim, cfg.OPTIM)
        self.register_model("prompt_learner", learner, self.optim, self.sched)
        self.scaler = GradScaler() if cfg.TRAINER.COOP.PREC == "amp" else None
        if torch.cuda.device_count() > 1:
            self.model = nn.DataParallel(self.model)

    def parse_batch_train(self, batch):
        return batch["img"].to(self.device), batch["label"].to(self.device)

    def forward_backward(self, batch):
        image, label = self.parse_batch_train(batch)
        if self.scaler is not None:
            with autocast():
                loss = F.cross_entropy(self.model(image), label)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optim)
            self.scaler.update()
            return {"loss": loss.item()}
        output = self.model(image)
        loss = F.cross_entropy(output, label)
        self.model_backward_and_update(loss)
        if (self.batch_idx + 1) == self.num_batches:
            self.update_lr()
        return {"loss": loss.item(), "acc": compute_accuracy(output, label)[0].item()}


@TRAINER_REGISTRY.register()
class CoOpDouble(Base):
    """CoOp's shape."""
