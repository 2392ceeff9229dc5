"""Frames over sockets: a stream (``stream``), many at once (``lines``), processes, addresses."""
