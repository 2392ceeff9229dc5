"""What is measured after a round, and what each number means (``protocol``, ``metrics``)."""

from fedvlm.evaluation.evaluator import Evaluator, zero_shot

__all__ = ["Evaluator", "zero_shot"]
