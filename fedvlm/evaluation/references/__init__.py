"""What a method must beat: predictions from the same frozen features without it (``suite``)."""
