"""Each method compared with the code of its authors: equal weights, equal images, equal numbers.

``world.py`` computes our side, ``authors.py`` loads a repository that the user names,
``figures.py`` stores what both agree on in ``tests/golden``, ``tests/trainers/test_parity.py``
holds the methods to it. One file per method has the other side: ``SOURCE``, ``CASES``, ``other``.
"""
