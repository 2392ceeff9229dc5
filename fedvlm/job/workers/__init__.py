"""Workers: processes of this machine that compute the clients of a run for its server."""
