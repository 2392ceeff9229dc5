"""LocalOnly: every client trains alone; nothing is sent.

Paper: no paper; the baseline without communication that personalised federated learning is held
    against since McMahan et al. 2017, and that users of such libraries ask for (PFLlib issue 243).
Equations: min_{w_k} F_k(w_k) for each client k by itself.
Shared: none
Personal: all that PEFT builds (by default text.ctx, image.adapter.*)
Frozen: both towers, the logit scale.
Defaults: as FedAvg's: the same budget of rounds and local epochs, the same optimiser.
Knobs: none.
Departures from the paper: there is none.
Departures from the authors' code: there is none. Rounds are kept: the optimiser starts afresh in
    each, and with FED.FRAC below 1 a client works only in the rounds that draw it, so that the
    steps are those of the other methods.
Extra data: none.
Cost: no byte travels; steps as FedAvg's. `global` is the untrained start: no tensor is aggregated.
Claim: none.
Command: python federated_main.py --demo --trainer LocalOnly
"""

from __future__ import annotations

from fedvlm.method import TRAINER_REGISTRY, PeftTrainer, peft


@TRAINER_REGISTRY.register("LocalOnly")
class LocalOnly(PeftTrainer):
    """An empty shared group (see the card)."""

    name = "LocalOnly"
    label_sets = True
    image_fits = (0,)
    captions = True
    classic = True
    roles = {peft.BODY: "personal", peft.HEAD: "personal"}
