"""Whether clients should federate, by cross-validation of training images (``fedvlm advise``).

``gather`` gives the clients' frozen features, ``folds`` what is held out, ``trial`` what each kind
of head reaches on it, ``verdict`` what follows, ``page`` the words. ``like`` reads a map of earlier
trials instead.
"""
