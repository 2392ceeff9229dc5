"""fedvlm: federated parameter-efficient fine-tuning of vision-language models."""

__version__ = "0.1.0"
