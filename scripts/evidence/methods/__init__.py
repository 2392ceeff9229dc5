"""Real runs of methods on the map: twelve cells, further axes, every fourth cell."""
