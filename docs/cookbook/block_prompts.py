"""BlockPrompts: rows of their own enter the last blocks of the image tower.

Equations: [x_b, _] = Block_b([x_{b-1}, P_b]) in the last DEPTH blocks; logits = scale z . T0;
    server P = sum_k p_k P_k.
Shared: image.prompt.* (P)
Personal: none
Command: fedvlm run --demo --rounds 2 --trainer docs/cookbook/block_prompts.py:BlockPrompts
"""

from fedvlm.method import Option, Trainer, adapters, vision


class BlockPrompts(Trainer):
    """The later the first prompt, the cheaper: what lies below it is computed once per image."""

    name = "BlockPrompts"
    options = {
        "TOKENS": Option(2, "rows of a block", low=1),
        "DEPTH": Option(1, "how many of the last blocks", low=1),
    }

    def blocks(self, model):
        """Return the blocks that get prompts."""
        return model.vision.blocks[-self.cfg.DEPTH:]

    def streams(self, model):
        """Return what enters the first of them; a block too late is refused before round 1."""
        return (vision.stream_name(self.blocks(model)[0].index),)

    def prompt_sets(self, batch_size):
        """Return 0: no prompt goes through the text tower."""
        return 0

    def trainables(self, model, generator):
        """Return ``image.prompt.<block> [TOKENS, width]``: the names say where they enter."""
        return adapters.prompt_tree(self.blocks(model), self.cfg.TOKENS, generator)

    def text_features(self, model, params):
        """Return the template's text features for each client, ``[K, C, d]``."""
        clients = len(next(iter(params.values())))
        return model.anchor("template", 0).expand(clients, -1, -1)

    def image_features(self, model, params, x):
        """Return features ``[K, B, d]`` of the prompted tower."""
        return model.adapted_image(x, adapters.TreeEdits("image", params))[0]
