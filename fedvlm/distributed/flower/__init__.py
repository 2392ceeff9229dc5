"""Flower as a carrier of frames: TLS, registered sites, and a relay that knows no tensor."""
