"""What a server takes of the rows of numbers that sites send: see ``policy`` for their updates.

A row is held against what the server asked for and what the site told of its images when it was
met. Whether the numbers are true, only their site knows; that they can be, is seen here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from fedvlm.core.errors import QuorumError
from fedvlm.core.trees import Tree
from fedvlm.distributed.schema import LIMIT
from fedvlm.distributed.server.membership import Membership
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.server.requests import Grave
from fedvlm.distributed.server.work import join_reasons
from fedvlm.distributed.site import of_client
from fedvlm.distributed.wire import Frame
from fedvlm.evaluation.scores import ABSENT, CONFUSION, RIGHT, SIX, UNSEEN, WITHHELD
from fedvlm.federation.server import Measure, Question, Row

_COUNTS = {"client", "n", "correct"}
_ALWAYS = _COUNTS | {"accuracy", "macro_f1", "balanced"}
_CELL = re.compile(rf"{CONFUSION}\.(\d{{1,6}})\.(-1|\d{{1,6}})")  # -1: ``scores.BROKEN``
_BITS = re.compile(rf"{RIGHT}\.\d{{1,9}}")  # ``scores.right_row``
_RARE = {"broken", ABSENT}  # in some rows only
_SLACK = 1e-6  # percent, or nats
_MOST = 1e300
SLACK, SLACK_ROW, CELL = 1 << 20, 1 << 14, 32  # bytes of a frame's rest, of a row, of a cell


def odd_row(row: Row, images: int, measure: Measure) -> str:
    """Return why a client's row is not taken: a clause; empty where it is.

    Args:
        row: with ``client``, and numbers or None else (``schema.row``).
        images: how many the site told of the split.
        measure: what was asked for.

    Numbers of the classes ``new`` and the domain ``unseen`` may lack: not every data set has them.
    """
    cells = [n for n in row if n.startswith(f"{CONFUSION}.")]
    bits = {n for n in row if _BITS.fullmatch(n)} if measure.answers else set[str]()
    names = row.keys() - set(cells) - bits
    wanted = _ALWAYS | ({"nll", "ece"} if measure.calibration else set())
    wanted |= {"base_all", "base_other"} if measure.cross else set()
    extra = {"new"} if measure.cross else set()
    extra |= {UNSEEN} if measure.away else set()
    if wanted - names:
        return f"its row lacks '{min(wanted - names)}'"
    if names - wanted - extra - _RARE or (cells and not measure.confusion):
        return "its row has metrics that were not requested"
    if any(type(row[n]) is not int for n in _COUNTS):
        return "the counts of its row are not whole numbers"
    n, correct = int(row["n"] or 0), int(row["correct"] or 0)
    if ABSENT in row:
        none = all(v is None for name, v in row.items() if name not in _COUNTS | {ABSENT})
        fine = row[ABSENT] == WITHHELD and none and not n and not correct
        return "" if fine else "its row says that it is absent, and has numbers"
    if n != images or not 0 <= correct <= n:
        return f"its row counts {correct} right of {n} images, and {images} were told"
    plain = {name: value for name, value in row.items() if name not in bits}
    return (_odd_bits(row, bits, n, correct) or _odd_numbers(plain, n, correct)
            or _odd_cells(row, cells, n, correct))


def _odd_bits(row: Row, bits: Collection[str], n: int, correct: int) -> str:
    """Return what is odd in a row's bits, of which a site may leave out all."""
    if not bits:
        return ""
    size = 8 * SIX
    numbers = [row.get(f"{RIGHT}.{at}") for at in range(-(-n // size))]
    if len(numbers) != len(bits) or not all(
        type(v) is int and 0 <= v < 1 << size for v in numbers
    ) or sum(int(v or 0).bit_count() for v in numbers) != correct:
        return "the bits of its row are not of its images"
    return ""


def _odd_numbers(row: Row, n: int, correct: int) -> str:
    for name in row.keys() - _COUNTS - {"broken", "nll"}:
        value = row[name]
        if not _CELL.fullmatch(name) and value is not None and not 0 <= value <= 100 + _SLACK:
            return f"'{name}' of its row is not a percentage"
    share, loss, broken = row["accuracy"], row.get("nll"), row.get("broken", 0)
    if (share is None) != (n == 0) or (
        share is not None and abs(share - 100 * correct / n) > _SLACK
    ):
        return "the accuracy of its row is not that of its counts"
    if loss is not None and not -_SLACK <= loss <= _MOST:
        return "'nll' of its row is not a valid loss"
    if type(broken) is not int or not 0 <= broken <= n:
        return "'broken' of its row is not a valid count of its images"
    return ""


def _odd_cells(row: Row, cells: list[str], n: int, correct: int) -> str:
    """Return what is odd in confusion counts; a site may leave out all of them."""
    total = right = 0
    for name in cells:
        match, value = _CELL.fullmatch(name), row[name]
        if match is None or type(value) is not int or value < 0:
            return "the confusion counts of its row are invalid"
        total, right = total + value, right + (value if match[1] == match[2] else 0)
    if cells and (total, right) != (n, correct):
        return "the confusion counts of its row are not of its images"
    return ""


def find_outvoted_rows(rows: Mapping[int, Row]) -> dict[int, str]:
    """Return why rows are not taken whose names are other than most others'; of two, the fewer."""
    many = f"{CONFUSION}.", f"{RIGHT}."
    names = {c: frozenset(n for n in row if n not in _RARE and not n.startswith(many))
             for c, row in rows.items()}
    votes = Counter(names.values())
    most = max(votes, key=lambda one: (votes[one], -len(one)), default=frozenset[str]())
    return {c: "its row has other metrics than the other clients' "
               "rows" for c, n in names.items() if n != most}


def most_row_bytes(measure: Measure, clients: int, classes: int) -> int:
    """Return how many bytes an answer with the rows of so many clients has at most.

    Args:
        classes: of the setting, as far as they are known; cells are of pairs of them.
    """
    if measure.keep_logits or measure.answers:
        return LIMIT
    cells = max(classes, 1000) ** 2 if measure.confusion else 0
    return SLACK + clients * (SLACK_ROW + CELL * cells)


@dataclass
class RowAnswers:
    """The answers to a question for rows of numbers.

    Args:
        question: whose rows.
        measure: what was asked for.
        members: the sites.
        say: hears what went wrong, a message each.

    Attributes:
        missing: clients without a row; ``why`` says why not.
        grave: clients of sites that failed for good.
        logits: those that sites sent and were asked for.
    """

    question: Question
    measure: Measure
    members: Membership
    say: Callable[[str], None]
    rows: dict[int, Row] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    why: dict[int, str] = field(default_factory=dict)
    grave: dict[int, Grave] = field(default_factory=dict)
    logits: Tree = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Wait for all clients."""
        self.missing = set(self.question.clients)

    def take(self, site: str, reply: Frame | str, ids: Collection[int]) -> bool:
        """Take the rows of an answer that can be true; return whether it was whole.

        Args:
            ids: the clients that the site was asked for.
        """
        about = f"numbers of round {self.question.round}, {site}"
        if isinstance(reply, str):
            if isinstance(reply, Grave):
                self.grave |= dict.fromkeys(ids, reply)
            self.why |= dict.fromkeys(ids, f"{site}: {reply}")
            self.say(f"{about}: {reply}")
            return False
        odd: dict[int, str] = {}
        for row in (row for row in reply.values["rows"] if row["client"] in ids):
            images = int(self.members.counts[row["client"]][self.measure.split])
            words = odd_row(row, images, self.measure)
            if words:
                odd[row["client"]] = words
            else:
                self.rows[row["client"]] = row
        if odd:
            self.why |= {c: f"{site}: {words}" for c, words in odd.items()}
            self.say(f"{about}: {_by_client(odd)}")
        self._take_logits(site, reply, ids)
        self.missing -= self.rows.keys()
        return not odd

    def _take_logits(self, site: str, reply: Frame, ids: Collection[int]) -> None:
        """Keep what a site's owner lets out of the logits that were asked for."""
        tree = reply.trees.get("logits", {})
        fine = {n: v for n, v in tree.items() if of_client(n) in ids
                and v.dim() == (2 if n.startswith("personal|") else 1)}
        if self.measure.keep_logits and len(fine) == len(tree):
            self.logits |= fine
            if not fine:
                self.say(f"{site} keeps its logits: its rules do not allow sending them (rule "
                         "'logits')")
        elif tree:
            self.say(f"{site} sent logits that were not requested: ignored")

    def finish(self, policy: Policy) -> list[Row]:
        """Return a row of each client, in their order.

        Raises:
            DivergedError, DataError: too few are left without sites that failed for good.
            QuorumError: too few answered.
        """
        lone, rows, missing = find_outvoted_rows(self.rows), dict(self.rows), set(self.missing)
        if lone:
            self.say(f"numbers of round {self.question.round}: {_by_client(lone)}")
            self.why |= {c: f"{self.members.home[c]}: {words}" for c, words in lone.items()}
            rows, missing = {c: r for c, r in rows.items() if c not in lone}, missing | set(lone)
        total, home = len(self.question.clients), self.members.home
        spare = total - policy.needed(total)
        for why in self.grave.values():
            if len(missing) > spare >= len(missing - self.grave.keys()):
                raise why.error
        if len(missing) > spare or (missing and not rows):
            raise QuorumError(
                f"round {self.question.round}: no numbers of {len(missing)} of {total} clients "
                f"({join_reasons(self.why.get(c, f'{home[c]}: excluded') for c in missing)}), "
                f"and the quorum is {policy.quorum:g}; the saved state is kept; run the "
                f"same command again to continue{self.members.way_back(missing)}"
            )
        return [rows.get(c) or _absent(c, next(iter(rows.values()))) for c in self.question.clients]


def _absent(client: int, like: Row) -> Row:
    """Return the row of a client whose site did not answer."""
    none: Row = dict.fromkeys(like)
    return none | {"client": client, "n": 0, "correct": 0, ABSENT: 1}


def _by_client(odd: Mapping[int, str]) -> str:
    """Return whose numbers are not taken, and why."""
    return join_reasons(f"no numbers of client {c}: {words}" for c, words in sorted(odd.items()))
