"""Files written for Dassl and OpenAI's ``clip`` run federated, unmodified: ``--trainer x.py:CoOp``.

The names that such files import exist in ``sys.modules`` only while one of them is loaded, built
or run (``surface.replace_modules``); dassl itself is never needed. How its words become ours:

* **Model.** ``clip.build_model`` gives OpenAI's classes over the run's own towers (``towers``), in
  ``MODEL.PREC`` fp32 or fp64. ``.cuda()``, ``.half()`` and ``.float()`` mean the run's device and
  type (``world``); ``PREC`` of the file's node is therefore always fp32.
* **Trainable set.** What an optimiser of the file holds and what requires a gradient, named
  ``<registered model>.<parameter>``; shared, but for ``FED.PERSONAL``.
* **Step.** ``forward_backward(batch)`` runs as it is, with the client's tensors in its parameters.
  ``optim.step()`` is the run's rule (``OPTIM.*``, its schedule and clock), at the very place where
  the file calls it: gradients that it has changed between backward and step count, and code behind
  the step (averages, teachers) sees the new weights. Weights that it loads count.
* **Epochs.** ``OPTIM.MAX_EPOCH``, ``epoch``, ``num_batches`` are a client's local epochs in one
  round. What the file keeps on itself between batches (a teacher, a running average, counters)
  lives as long: it begins anew for each client and round, so that nothing of one client reaches
  another and nothing but the tensors has to be saved.
* **Images.** Where the file only sends them through the frozen tower (tried before round 1, with
  random weights, logits and gradients), it gets cached features instead; otherwise pixels.
* **Evaluation** calls ``model_inference``; for other classes the file builds its model again.
* A loop of its own (``train``, ``run_epoch``) is refused: rounds are fedvlm's. Of a ``test`` of its
  own the logits are taken that it hands to its evaluator.
* **Repository.** Keys, modules, ``clip`` and the rows that a fork keeps with a client come from the
  folder around the file: ``repository``.
"""
