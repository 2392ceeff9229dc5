"""What is measured after a round, and what each number means (``protocol``, ``metrics``)."""

from fedvlm.evaluation.protocol import Evaluator
from fedvlm.evaluation.reference import zero_shot

__all__ = ["Evaluator", "zero_shot"]
