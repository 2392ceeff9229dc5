"""``fedvlm site record``: ten questions about what left a site, answered from what it kept."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvlm.console.rows import human_bytes
from fedvlm.console.screen import complain, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.distributed.site import METRIC, WEIGHT
from fedvlm.distributed.site_yaml import SiteYaml, read_site_yaml
from fedvlm.federation.groups import BASELINE_SUMS, Releases
from fedvlm.job.results.private import never
from fedvlm.job.sites.messages import (
    CAME,
    LOG,
    OWNER,
    PRUNED,
    SERVING,
    WENT,
    WITHDRAWN,
    log_damage,
    read_log,
)

PAGE = "record.md"
TITLE = "# What left the site of "
SHORT = 12  # digits of a run's name
Line = dict[str, Any]
WORKED, MASKED, EVALUATED = "worked", "masked", "evaluated"
TOLD, ROWS, LOGITS = "told", "rows", "logits"  # trees of tensors that are numbers, rows, outputs
SUMS = "sums"  # of sums over this site's own images


@dataclass
class RunLines:
    """What the log says of one run.

    Attributes:
        name: the run's; empty: messages that named none.
        about: what was noted as it was accepted; {}: it never was.
        came, went: lines of messages, in their order.
    """

    name: str
    about: Line = field(default_factory=dict)
    came: list[Line] = field(default_factory=list)
    went: list[Line] = field(default_factory=list)

    @property
    def what(self) -> str:
        """How the page calls it."""
        if not self.name:
            return "messages of no run"
        named = f"run {self.name[:SHORT]}"
        return f"{named} ({self.about['method']})" if self.about else named

    def of(self, *kinds: str) -> list[Line]:
        """Return the answers of these kinds."""
        return [line for line in self.went if line["kind"] in kinds]

    def sums(self) -> list[str]:
        """Return names of sums over this site's own images that left without masks."""
        return sorted({n for line in self.of(EVALUATED) for n in line["tensors"].get(SUMS, ())})

    def telling(self) -> list[str]:
        """Return what of what left gives single images away."""
        told = self.about.get("declared") or {}
        single = str(told.get("single", "")) if self.of(WORKED, MASKED) else ""
        return Releases(single=single).telling(self.sums())

    def outside(self) -> list[str]:
        """Return names of tensors and numbers that left and are not declared."""
        told = self.about.get("declared")
        if not told:
            return []
        list_ = Releases(tuple(told["shared"]), tuple(told["extras"]), tuple(told["metrics"]),
                         sums=tuple(told.get("sums", BASELINE_SUMS)))  # older logs have no list
        stray = set(list_.outside((), (), (), self.sums()))
        for line in self.of(WORKED):
            sent = line["tensors"]
            numbers = [n.removeprefix(METRIC) for n in sent.get(TOLD, ()) if n != WEIGHT]
            stray.update(list_.outside(sent.get("up", ()), sent.get("extra", ()), numbers))
        return sorted(stray)


@dataclass
class SiteHistory:
    """A site's log, sorted.

    Attributes:
        owner: of the site.
        runs: by name.
        servings: lines of processes that began.
        pruned: the line that says which lines the owner removed last; {}: none.
        anew: when the owner let sums be read over other sites again.
        withdrawn: lines of images that the owner took out of the lists.
        seals: of all lines.
        fault: where the log was changed; empty: nowhere.
    """

    owner: SiteYaml
    runs: dict[str, RunLines] = field(default_factory=dict)
    servings: list[Line] = field(default_factory=list)
    pruned: Line = field(default_factory=dict)
    anew: list[float] = field(default_factory=list)
    withdrawn: list[Line] = field(default_factory=list)
    seals: list[str] = field(default_factory=list)
    fault: str = ""

    def failures(self) -> list[str]:
        """Return what of the record has to be looked into."""
        out = [f"{LOG}: {self.fault}; this line and all later ones are not in the answers"] if (
            self.fault) else []
        for run in self.runs.values():
            stray = run.outside()
            if stray:
                out.append(f"{run.what} sent what its method does not declare: {_names(stray)}")
        return out


def read_history(owner: SiteYaml) -> SiteHistory:
    """Return what a site's log says.

    Raises:
        ConfigError: there is none yet.
        DataError: it cannot be read.
    """
    path = owner.states / LOG
    if not path.is_file():
        raise ConfigError(f"'{path}' does not exist: this site was not served yet, or only by a "
                          "fedvlm that kept no log of messages (fedvlm site serve)")
    lines, seals = read_log(path)
    out = SiteHistory(owner, seals=seals, fault=log_damage(path))
    for line in lines:
        if line["kind"] == SERVING:
            out.servings.append(line)
            continue
        if line["direction"] == OWNER:
            if line["kind"] == PRUNED:
                out.pruned = line
            elif line["kind"] == WITHDRAWN:
                out.withdrawn.append(line)
            else:
                out.anew.append(line["at"])
            continue
        name = line.get("run", "")
        run = out.runs.setdefault(name, RunLines(name))
        {CAME: run.came, WENT: run.went}[line["direction"]].append(line)
        run.about = line.get("about", run.about)
    return out


def site_record(args: Namespace) -> int:
    """Write the page and say the short form; return the exit code.

    Raises:
        ConfigError: the rules are wrong, or there is no log.
        DataError: the log cannot be read, or the page not written.
    """
    file = user_path(args.opts[0])
    page = file.parent / PAGE
    if not args.json and page.exists() and not _is_ours(page):
        raise ConfigError(f"'{page}' is not a page of fedvlm site record: move it away, or print "
                          "the answers with --json")
    history = read_history(read_site_yaml(file))
    problems = history.failures()
    last_removed = args.head and args.head == history.pruned.get("head")
    if args.head and args.head not in history.seals and not last_removed:
        problems.append(f"{LOG} has no line with the seal {args.head}: lines were taken away, or "
                        "all of it was made anew, since that seal was kept" + (
                            f"; or it is that of one of the {_removed(history.pruned)}, of which "
                            "no seal is kept here" if history.pruned else ""))
    answers, code = ten_answers(history), DataError.exit_code if problems else 0
    if args.json:
        say(json.dumps({"answers": dict(answers), "head": _head(history),
                        "lines": len(history.seals), "problems": problems, "exit_code": code},
                       indent=1))
        return code
    files.write_text(page, record_page(file, history, answers, problems))
    for number, (question, words) in enumerate(answers, start=1):
        say(f"{number}. {question}", f"   {words[0]}")
    complain(*problems, prefix="problem")
    if last_removed:
        say("the seal that was kept is that of the last line which the owner removed "
            f"({_removed(history.pruned)}); the lines after it follow it")
    elif args.head and args.head in history.seals:
        say(f"the seal that was kept is that of line "
            f"{history.seals.index(args.head) + 1 + bool(history.pruned)}: "
            "everything up to it is as it was"
            + (f", but for the {_removed(history.pruned)}" if history.pruned else ""))
    say(f"{len(history.seals)} lines, "
        f"{'each fits the one before' if not history.fault else history.fault}; the last seal is "
        f"{_head(history)}", "keep it elsewhere: only so it shows if somebody makes the whole log "
        "anew (--head SEAL)", f"wrote {page}")
    return code


def _is_ours(page: Path) -> bool:
    with files.explain_errors(page), page.open("rb") as file:
        return file.read(len(TITLE)) == TITLE.encode()


def record_page(
    file: Path, history: SiteHistory, answers: Sequence[tuple[str, Sequence[str]]],
    problems: Sequence[str],
) -> str:
    """Return the page, Markdown."""
    parts = [f"{TITLE}{_code(str(file))}", "",
             f"Made {_day(time.time())} by `fedvlm site record` from the site's log "
             f"({len(history.seals)} lines), its rules and its folder of states. It states what "
             "was written down here; it is no legal assessment.", ""]
    parts += [f"**Look into this**: {one}\n" for one in problems]
    for number, (question, words) in enumerate(answers, start=1):
        parts += [f"## {number}. {question}", *(f"- {one}" for one in words), ""]
    parts += ["## What this record cannot show", *(f"- {one}" for one in LIMITS),
              f"- The last seal is `{_head(history)}` (line {len(history.seals)}). Keep it where "
              "whoever can write this site's folder cannot; later `fedvlm site record --head "
              "SEAL` says whether the log still holds that line.", ""]
    return "\n".join(parts)


LIMITS = (
    "A changed, removed or moved line is found, since each line holds a checksum of itself and "
    "of the line before. **Whoever can write the log can make all of it anew**, or take its last "
    "lines away, and no checksum in it shows that. Only a seal that was kept elsewhere does.",
    "The log is written by fedvlm on this machine. It has no line of what another program read "
    "or sent, of copies of the disk, or of messages from before this log began.",
    "What the coordinator did with what it got is not known here.",
    "A line of an answer is written before the answer leaves. If the process ended in between, "
    "or the line was cut, nobody got it.",
)


def ten_answers(history: SiteHistory) -> list[tuple[str, list[str]]]:
    """Return the questions with their answers; the first sentence of each is the short one."""
    runs = [run for run in history.runs.values() if run.went or run.came]
    return [
        ("What leaves this site?", _leaves(runs)),
        ("To whom?", _to_whom(history)),
        ("How often, and how much?", _how_much(runs)),
        ("How long is it kept, here and at the server?", _kept(history)),
        ("How is it erased?", _erased(history)),
        ("Who saw my numbers?", _saw(runs)),
        ("Which protection was in force?", _protection(history, runs)),
        ("Who could read a message on the way?", _on_the_way(history)),
        ("What was refused?", _refused(runs)),
        ("What stays here?", _stays(history)),
    ]


def _leaves(runs: Sequence[RunLines]) -> list[str]:
    words, named = [], []
    for run in runs:
        tensors, numbers = set[str](), set[str]()
        for line in run.went:
            for tree, names in line["tensors"].items():
                if tree == TOLD:
                    numbers.update(n.removeprefix(METRIC) for n in names)
                elif tree != ROWS:  # which rows of a tensor were sent
                    tensors.update(names)
            numbers.update(line["numbers"])
        if not tensors and not numbers:
            continue
        named.append(run.what)
        parts = [f"tensors {_names(sorted(tensors))}"] if tensors else []
        parts += [f"numbers {_names(sorted(numbers))}"] if numbers else []
        words.append(f"{run.what}: {'; '.join(parts)}. {_held(run)}")
        if run.sums():
            words.append(f"{run.what}: for baselines sums over this site's own training images "
                         f"left, without masks (rule 'baselines'): {_names(run.sums())}.")
        words += [f"{run.what}: {one}." for one in run.telling()]
    if not named:
        return ["No update and no number of a run left."]
    summed = [run.what for run in runs if run.sums()]
    also = f" Sums over this site's own images, without masks, of {', '.join(summed)}." if (
        summed) else ""
    return [f"Updates, or numbers, of {', '.join(named)}.{also}", *words]


def _held(run: RunLines) -> str:
    """Return how what left compares with what the run's method declares: a sentence."""
    if run.of(MASKED):
        return "Updates left in masked sums only."
    if not run.of(WORKED):
        return "No update left."
    told = run.about.get("declared")
    if not told:
        return "What its method declares is not in this log."
    list_ = _names([*told["shared"], *told["extras"], *told["metrics"]])
    return ("More left than its method declares for updates: " if run.outside() else
            "No more left with updates than its method declares: ") + (
                f"{list_}, a weight, and counts of work (steps, samples, passes through the "
                "towers).")


def _to_whom(history: SiteHistory) -> list[str]:
    over = {line["over"] for line in history.servings}
    words = [f"The coordinator behind Flower at {_code(one)}." for one in sorted(over) if one]
    if "" in over:
        words.append("A coordinator of the same user on this machine, by a Unix socket.")
    if not history.servings:
        words.append("The log does not say who was served.")
    return [" ".join(words), "What a coordinator hands on, other sites receive as the model of the "
            "next round; which these are, this site does not know."]


def _how_much(runs: Sequence[RunLines]) -> list[str]:
    went, came = [x for run in runs for x in run.went], [x for run in runs for x in run.came]
    words = [f"{len(went)} messages ({human_bytes(_size(went))}) left, {len(came)} "
             f"({human_bytes(_size(came))}) came."]
    for run in runs:
        rounds = sorted({line["round"] for line in run.of(WORKED, MASKED)})
        kinds = Counter(line["kind"] for line in run.went)
        times = [line["at"] for line in (*run.came, *run.went)]
        words.append(
            f"{run.what}: {', '.join(f'{n} {kind}' for kind, n in kinds.items()) or 'nothing'}, "
            f"{human_bytes(_size(run.went))} sent, {human_bytes(_size(run.came))} received, "
            f"{_day(min(times))} to {_day(max(times))}"
            + (f", updates of rounds {rounds[0]} to {rounds[-1]}" if rounds else ""))
        silent = len(run.came) - len(run.went)
        if silent > 0:
            words.append(f"{run.what}: {silent} message(s) without an answer: the process ended in "
                         "between, or is at work")
    return words


def _kept(history: SiteHistory) -> list[str]:
    states = history.owner.states
    there = sorted(p for p in states.iterdir() if p.is_dir() and not p.name.startswith("."))
    words = [f"Here until the owner deletes it; {len(there)} run(s) have states in "
             f"{_code(str(states))}. At the server this site cannot know."]
    for folder in there:
        kept = [f.stat() for f in folder.rglob("*") if f.is_file()]
        words.append(f"run {folder.name[:SHORT]}: {human_bytes(sum(f.st_size for f in kept))}, "
                     f"last written {_day(max((f.st_mtime for f in kept), default=0.0))}")
    return [*words, "Ask the coordinator: its run folder keeps the newest models, and numbers of "
            "all rounds, until somebody deletes it; over Flower the SuperLink's database keeps "
            "messages until they are delivered."]


def _erased(history: SiteHistory) -> list[str]:
    return [
        "Here by fedvlm site forget, while nobody serves; at the server by asking.",
        "`fedvlm site stop`, then `fedvlm site forget` with this site's file, which erases the "
        f"states of runs in {_code(str(history.owner.states))}. Do not delete files there by hand: "
        "some keep single updates from being asked for again. "
        f"{_code(LOG)} stays; its old lines go with `fedvlm site prune` ("
        + (f"{_removed(history.pruned)}, on {_day(history.pruned['at'])})." if history.pruned
           else "so far none did)."),
        *(f"On {_day(line['at'])} the owner took {line['images']} images out of the lists "
          "(`fedvlm site forget` with --client or --images): they were in earlier work."
          for line in history.withdrawn),
        "What a model learnt from this site is not erased by that. The coordinator deletes the "
        "run folder and exported copies, or trains again without the client.",
    ]


def _saw(runs: Sequence[RunLines]) -> list[str]:
    plain = [run.what for run in runs if run.of(WORKED)]
    hidden = [run.what for run in runs if run.of(MASKED)]
    rows = [run.what for run in runs if run.of(EVALUATED)]
    words = [f"The coordinator: single updates in {len(plain)} run(s), sums only in {len(hidden)}, "
             f"numbers of evaluations in {len(rows)}."]
    words += [f"The coordinator saw each client's update: {', '.join(plain)}"] if plain else []
    words += [f"The coordinator saw a masked sum, and the total over all sites: "
              f"{', '.join(hidden)}. That holds if it followed the protocol, and if not all other "
              "sites told each other what they sent"] if hidden else []
    words += [f"The coordinator saw numbers by client: {', '.join(rows)}"] if rows else []
    return [*words, "Other sites saw the models that came of all updates."]


def _protection(history: SiteHistory, runs: Sequence[RunLines]) -> list[str]:
    known = [run for run in runs if run.about and run.of(WORKED, MASKED)]
    bounded, secure = ([run for run in known if run.about[k]] for k in ("bounded", "secure"))
    words = [f"The owner's rules; of {len(known)} run(s) {len(secure)} with secure sums, "
             f"{len(bounded)} with noise that bounds epsilon."]
    if bounded and len(known) > 1:
        words.append("An epsilon is of one run alone: over runs on the same patients epsilons add "
                     "up, and updates that left without noise are outside of any.")
    for run in known:
        sums = "secure sums over sites" if run.about["secure"] else "no secure sums"
        noise = (f"{run.about['privacy']} (if all {run.about['rounds']} planned rounds are worked)"
                 if run.about["privacy"] else "no guarantee of privacy")
        words.append(f"{run.what}: {sums}; {noise}")
    words += [f"On {_day(at)} the owner let secure sums be read over other sites than before."
              for at in history.anew]
    before = ""
    for line in history.servings:
        said = "; ".join(f"{k} {_rule(v)}" for k, v in line["rules"].items())
        if said != before:
            words.append(f"Rules from {_day(line['at'])} on (0: no limit): {said}")
        before = said
    return words


def _on_the_way(history: SiteHistory) -> list[str]:
    over = {line["over"] for line in history.servings}
    words = []
    if any(over):
        words.append("Over Flower: nobody on the network (TLS 1.3). The coordinator's SuperLink "
                     "sees messages in the clear, and keeps them until they are delivered.")
    if "" in over:
        words.append("By a Unix socket: this user and the administrator of this machine.")
    return words or ["The log does not say how messages came."]


def _refused(runs: Sequence[RunLines]) -> list[str]:
    why: Counter[str] = Counter()
    for run in runs:
        why.update(f"{run.what}: {line['why']}" for line in run.of("failed"))
    return [f"{sum(why.values())} message(s) were refused or failed.",
            *(f"{_code(words)}{f' ({n} times)' if n > 1 else ''}" for words, n in why.items())]


def _stays(history: SiteHistory) -> list[str]:
    outputs = any(LOGITS in line["tensors"] for run in history.runs.values()
                  for line in run.of(EVALUATED))
    stays = never(outputs or any(run.telling() for run in history.runs.values()))
    sure = "it cannot be said; see the problems above" if history.failures() else (
        "no message in this log declares them")
    words = f"{', '.join(stays)}: {sure}."
    return [
        words[0].upper() + words[1:],
        *(["**Outputs for single images left, with their labels** (rule 'logits')."] if outputs
          else []),
        *([f"Sums for baselines, where a class has fewer than {count} training images (rule "
           "'count')."] if (count := history.owner.terms.count) > 1 else []),
        "File names, paths, the texts of errors, and the secret of the noise and masks.",
    ]


def _rule(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "all" if value is None else str(value).lower() if isinstance(value, bool) else (
        f"{value:,}")


def _size(lines: Iterable[Line]) -> int:
    return sum(line["bytes"] for line in lines)


def _names(some: Sequence[str]) -> str:
    first = ", ".join(_code(name) for name in some[:8])
    return f"{first} and {len(some) - 8} more" if len(some) > 8 else first


def _code(words: str) -> str:
    """Return words that came over the wire so that a page shows them and does nothing else."""
    return f"`{words.replace('`', chr(39))}`"


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _removed(line: Line) -> str:
    return f"{line['lines']} lines until {_day(line['until'])} that the owner removed"


def _head(history: SiteHistory) -> str:
    return history.seals[-1] if history.seals else ""
