"""What is measured after a round, where (``meter``), of whom (``panel``), and what it means."""

from fedvlm.evaluation.evaluator import Evaluator, zero_shot
from fedvlm.evaluation.meter import ClientMeter
from fedvlm.evaluation.panel import Panel, auto_interval, panel_of

__all__ = ["ClientMeter", "Evaluator", "Panel", "auto_interval", "panel_of", "zero_shot"]
