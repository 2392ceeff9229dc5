"""Figures. One is one module here or in ``settings/``, ``answers/``; a new file makes a new figure.

A module is a figure if it declares ``NAME``; ``catalog`` finds it, ``fedvlm figures`` writes it and
the pages of runs and sweeps show it. It has:

* ``NAME``: of its files; ``ORDER``: figures of a page stand by it, then by name;
* ``CAPTION``: what it shows, for a reader of a page;
* ``OF``: ``run`` (of one run), ``runs`` (over several) or ``both``;
* ``select(selection)``: the data it draws, from ``selection.runs``; the reason why there are none,
  or None where there is nothing to say; may raise DataError;
* ``draw(data, title="", width=style.PAGE)``: matplotlib's Figure, ``width`` inches wide at most;
* ``rows(data)``: the rows of the CSV beside it;
* optional ``parts(data)``: heading -> data, one figure each, for a page over several runs, and of
  many methods for files.

``drawing/`` holds what several are drawn with. Artists of a method have ``style.gid`` of its label,
by which a page finds them.
"""
