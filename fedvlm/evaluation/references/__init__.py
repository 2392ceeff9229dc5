"""What a method must beat: predictions from the same frozen features without it (``suite``)."""

from fedvlm.evaluation.references.suite import (
    ALONE,
    BOUND,
    TOGETHER,
    Asked,
    of_judged,
    order,
    references,
    template_reference,
    zero_shots,
)

__all__ = ["ALONE", "BOUND", "TOGETHER", "Asked", "of_judged", "order", "references",
           "template_reference", "zero_shots"]
