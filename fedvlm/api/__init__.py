"""The Python API: ``fedvlm.load``, ``fedvlm.train`` and what they return (see ``fedvlm``)."""
