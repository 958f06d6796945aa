"""A fleet's session: ask the places, keep what comes in, judge all of it, write what there is to read."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tunecheck.core import interrupts
from tunecheck.core.check import grouped
from tunecheck.core.errors import HistoryError, SuiteError, TraceError
from tunecheck.core.files import listed, write_whole
from tunecheck.core.paths import reports_folder
from tunecheck.core.text import human_seconds
from tunecheck.fleet.engines import ENGINES
from tunecheck.fleet.request import REQUEST_FILE, Engine, EngineOptions, News, Request, read_request, write_request
from tunecheck.history.remember import fleet_entries
from tunecheck.history.store import Store, history_file
from tunecheck.report.fleet import FLEET_PAGE, fleet_html
from tunecheck.results.fleet import (
    ANSWER_FILE,
    ANSWERS,
    FLEET_FILE,
    FLEETS,
    NODES_FOLDER,
    Answer,
    FleetReport,
    Heard,
    NodeRow,
    Place,
    write_drain,
)
from tunecheck.results.fleet.judge import clock_remark, judge_fleet, unwritten
from tunecheck.results.stored import write_record

Watch = Callable[[Mapping[str, Heard], str], None]
"""Shows what is known of each place by its name, and what the engine is in trouble with."""


def new_request(
    engine: str, options: EngineOptions, arguments: Sequence[str], command: str, folder: Path | None = None
) -> Request:
    """Return the request of a session that begins now, by default with a folder of its own."""
    now = datetime.now(UTC)
    name = f"fleet-{now:%Y%m%dT%H%M%SZ}-{os.getpid()}"
    # without it the bits of two cards may differ, and are not compared
    deterministic = ("--set", "training.deterministic=true")
    settings = () if any("training.deterministic=" in word for word in arguments) else deterministic
    return Request(
        id=name,
        folder=str((folder or reports_folder() / name).absolute()),
        engine=engine,
        options=options,
        arguments=(*arguments, *settings),
        command=command,
        started_at=now.isoformat(timespec="seconds"),
        working_folder=str(Path.cwd()),
    )


class FleetSession:
    """Asks every place once, or those that have not answered yet."""

    def __init__(self, request: Request, *, at_once: int | None, wait_seconds: float) -> None:
        """`at_once` is the number of nodes that are asked at a time; None for all."""
        self.request, self._at_once, self._wait_seconds = request, at_once, wait_seconds
        self.folder = Path(request.folder)
        self._clock = time.monotonic()
        self._heard: dict[str, Heard] = {}
        self._trouble = ""
        self._notes: list[str] = []
        self.interrupted = False

    def ask(self, watch: Watch) -> FleetReport:
        """Ask, wait until all have answered or the time is over, and write the report; `watch` is called meanwhile.

        An interrupt ends all and judges what was finished. Raises SuiteError where the engine refuses everything.
        """
        engine = ENGINES[self.request.engine](self.request.options, self.folder)
        places, held = engine.places(), read_answers(self.folder)
        usable, wanted = {place.node for place in places if not place.problem}, self.request.options.nodes
        if self.request.engine != "local" and wanted.isdecimal() and len(usable) < int(wanted):
            self._notes.append(f"--nodes {wanted}: {len(usable)} can be asked")
        listed, gone = {place.name for place in places}, f"{self.request.engine} no longer lists it"
        before = [place for place in _places(self.folder, self.request).values() if place.name not in listed]
        places += [dataclasses.replace(place, problem=gone) for place in before]
        self.request = dataclasses.replace(self.request, places=tuple(places))
        write_request(self.request)
        for place in places:
            answer = held.get(place.name)
            self._heard[place.name] = Heard(place, answer=answer if answer and answer.finished else None)
        try:
            interrupts.work()  # a cancelled job cancels what it queued; after the engine, since Ray has its own handler
            self._ask_all(engine, watch)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            interrupts.close()
            self._stop(engine)
        return self.judged(self._heard.values())

    def judged(self, heard: Collection[Heard]) -> FleetReport:
        """Judge what there is and write fleet.json, the page and the list of nodes to drain."""
        if answers := [one.answer for one in heard if one.answer]:
            oldest = min(answers, key=lambda answer: answer.ended_at)
            if (age := time.time() - oldest.ended_at) > self._wait_seconds:
                self._notes.append(f"the oldest answer, that of {oldest.place}, is {human_seconds(age)} old")
        try:  # no error of the history costs the verdict
            if entries := fleet_entries(answers):
                Store(history_file(self.folder.parent)).add(entries)
        except HistoryError as error:
            self._notes.append(f"the figures of these nodes are not in the history: {error}")
        report = judge_fleet(
            heard,
            interrupted=self.interrupted,
            started_at=self.request.started_at,
            seconds=time.monotonic() - self._clock,
            engine=self.request.engine,
            command=self.request.command,
            notes=tuple(self._notes),
        )
        try:
            write_drain(report, self.folder)
            write_whole(self.folder / FLEET_PAGE, fleet_html(report))
            write_record(report, self.folder / FLEET_FILE)
        except SuiteError as error:  # what was found is printed all the same, and is no pass
            report = unwritten(report, str(error))
        return report

    def _ask_all(self, engine: Engine, watch: Watch) -> None:
        """Ask node after node, so many at a time, until none is left or the time is over.

        Between two submissions it looks for answers, but not more often than `poll_seconds`: ten thousand submissions
        take half an hour. Raises SuiteError where every node was refused.
        """
        silent = [one for one in self._heard.values() if not (one.answer or one.place.problem)]
        waiting = list(grouped((one.place.node, one) for one in silent).values())
        asked: dict[str, str] = {}
        polled = time.monotonic()
        deadline = polled + self._wait_seconds
        while (waiting or asked) and time.monotonic() < deadline:
            if waiting and (self._at_once is None or len(set(asked.values())) < self._at_once):
                node = waiting.pop(0)
                if self._submitted(engine, node):
                    asked |= {one.place.name: one.place.node for one in node}
                if waiting and time.monotonic() - polled < engine.poll_seconds:
                    continue
            else:
                time.sleep(engine.poll_seconds)
            polled = time.monotonic()
            for name in self._poll(engine):
                asked.pop(name, None)
            watch(self._heard, self._trouble)
        refused = [one.missing for one in self._heard.values() if one.missing]
        if refused and not any(one.asked_at or one.answer for one in self._heard.values()):
            raise SuiteError(refused[0])
        over = f"no answer within {human_seconds(self._wait_seconds)} (--wait)"
        for one in [*(self._heard[name] for name in asked), *(one for node in waiting for one in node)]:
            one.missing = f"{over}: {one.said or 'not asked yet'}"

    def _submitted(self, engine: Engine, node: Sequence[Heard]) -> bool:
        for one in node:
            (self.request.place_folder(one.place.name) / ANSWER_FILE).unlink(missing_ok=True)
        try:
            engine.submit(self.request, [one.place for one in node])
        except SuiteError as error:
            for one in node:
                one.missing = str(error)
            return False
        for one in node:
            one.asked_at = time.time()
        return True

    def _poll(self, engine: Engine) -> list[str]:
        try:
            news = list(engine.poll())
        except SuiteError as error:  # a scheduler that restarts; the jobs go on
            self._trouble = str(error)
            return []
        for one in news:
            self._learn(one)
        return [one.place for one in news if one.state in ("answered", "lost")]

    def _learn(self, news: News) -> None:
        """Keep what an engine says of a place; an answer that is broken is a missing one with its reason."""
        heard = self._heard[news.place]
        heard.state, heard.words = news.state, news.words
        if news.state == "lost":
            heard.missing, heard.gone = news.words, news.sick
        if news.state != "answered":
            return
        try:
            if (answer := ANSWERS.built(news.answer, f"the answer of {news.place}")).place != news.place:
                raise TraceError(f"the answer of {news.place}: is that of {answer.place!r}")
        except TraceError as error:
            heard.missing = str(error)
            return
        if answer.problem:  # it may have had no way to write it here itself; nor may this machine have
            with contextlib.suppress(SuiteError):
                write_record(answer, self.request.place_folder(news.place) / ANSWER_FILE, indent=None)
        heard.answer = answer
        heard.clock = clock_remark(answer, heard.asked_at or answer.began_at, time.time())

    def _stop(self, engine: Engine) -> None:
        """Cancel what is left; keep what sessions that were ended by it still answered."""
        try:
            engine.cancel()
            for news in engine.poll():
                self._learn(news)
        except SuiteError as error:
            self._notes.append(f"queued jobs may still be there: {error}")
        late = read_answers(self.folder)
        for name, one in self._heard.items():
            one.answer = one.answer or late.get(name)
            if self.interrupted and one.asked_at and not one.missing:
                one.missing = "cancelled with the session: run it again with --resume"


def gathered(folder: Path, nodes: str, silent_seconds: float) -> list[Heard]:
    """Return what lies in a fleet's folder, or in a folder of fleets such as one for each node, asking nobody.

    Every place that was ever asked is in it. If it was asked several times, the last time counts, answered or not.
    Between several fleets, an answer that is older than the newest by `silent_seconds` counts as none. `nodes` is how
    many nodes there should be, or their names. Raises TraceError where there is no fleet.
    """
    closed: list[OSError] = []
    fleets = _fleets(folder, closed)
    if not (said := grouped((one.place.name, one) for fleet in fleets for one in _told(fleet, folder))):
        raise TraceError(f"{folder}: holds no answer of a fleet; give a fleet's folder, or one with several fleets")
    newest = min(max(one.asked_at for of_place in said.values() for one in of_place), time.time())
    found = []
    for of_place in said.values():
        last = max(of_place, key=lambda one: one.asked_at)
        late = newest - last.asked_at
        if last.answer is None and (answered := [one.asked_at for one in of_place if one.answer]):
            last.missing += f"; it last answered {human_seconds(last.asked_at - max(answered))} before"
        elif last.answer and len(fleets) > 1 and late > silent_seconds:
            reason = f"it did not begin; its last answer is {human_seconds(late)} older than the newest request"
            last.missing, last.answer = f"{reason}: status {last.answer.status} then", None
        found.append(last)
    return [*found, *map(Heard, [*_closed(folder, closed), *_never_asked({one.place.node for one in found}, nodes)])]


def _fleets(folder: Path, closed: list[OSError]) -> list[Path]:
    """Return the folders of fleets; add the error of each folder that cannot be looked into."""
    if (folder / NODES_FOLDER).is_dir() or (folder / REQUEST_FILE).exists():
        return [folder]
    walked = [(Path(at), names) for at, _, names in os.walk(folder, onerror=closed.append)]
    fleets = {at for at, names in walked if REQUEST_FILE in names}
    fleets |= {at.parents[1] for at, names in walked if ANSWER_FILE in names and at.parent.name == NODES_FOLDER}
    return sorted(fleets)


def _closed(folder: Path, errors: Iterable[OSError]) -> Iterator[Place]:
    """Yield a place for each folder that may not be read, such as another user's: nobody knows who answered there."""
    for error in errors:
        if not isinstance(error, FileNotFoundError):  # another process has removed it
            name = os.path.relpath(error.filename, folder)
            yield Place(name=name, node=name, problem=f"{error.filename} cannot be read: {error.strerror}")


def _told(fleet: Path, folder: Path) -> Iterator[Heard]:
    """Yield what this fleet says of each of its places; session folders are made relative to `folder`."""
    asked_at, request, answers = 0.0, None, read_answers(fleet)
    rows: dict[str, NodeRow] = {}
    try:
        request = read_request(fleet)
        asked_at = datetime.fromisoformat(request.started_at).timestamp()
    except (TraceError, ValueError) as error:  # its answers still count
        if not (answers or listed(fleet / NODES_FOLDER)):
            yield Heard(Place(name=fleet.name, node=fleet.name), missing=str(error))
    with contextlib.suppress(TraceError):  # likewise; a fleet that was killed has none
        rows = {row.place: row for row in FLEETS.read(fleet / FLEET_FILE).rows if row.outcome == "no answer"}
    for name, place in _places(fleet, request, [*answers.values(), *rows.values()]).items():
        answer, row = answers.get(name), rows.get(name)
        if answer is None:
            why = row.reason if row else place.problem or "it was asked but did not answer"
            yield Heard(place, asked_at=asked_at, missing=why, gone=bool(row and row.drain))
            continue
        if answer.session:
            answer = dataclasses.replace(answer, session=str((fleet / answer.session).relative_to(folder)))
        yield Heard(place, asked_at=max(asked_at, answer.began_at), answer=answer)


def _places(fleet: Path, request: Request | None, told: Iterable[Answer | NodeRow] = ()) -> dict[str, Place]:
    """Return the places of a fleet by its request, else by what was told of them, else by their folders."""
    found = {path.name: Place(name=path.name, node=path.name) for path in listed(fleet / NODES_FOLDER)}
    found |= {one.place: Place(name=one.place, node=one.node, card=one.card) for one in told}
    return found | {place.name: place for place in (request.places if request else ())}


def _never_asked(there: Collection[str], nodes: str) -> list[Place]:
    """Return places for the nodes that should be there, by number or names, and are not among these."""
    if nodes.isdecimal():
        lacking = [f"unknown-{number}" for number in range(len(there) + 1, int(nodes) + 1)]
    else:
        lacking = [name for name in nodes.split(",") if name not in there and nodes != "all"]
    problem = f"it was never asked: --nodes {nodes}, and {len(there)} left a request here"
    return [Place(name=name, node=name, problem=problem) for name in lacking]


def read_answers(folder: Path) -> dict[str, Answer]:
    """Return the answers in a fleet's folder; one that cannot be read is one with that problem."""
    found: dict[str, Answer] = {}
    for path in listed(folder / NODES_FOLDER, f"*/{ANSWER_FILE}"):
        name = path.parent.name
        with contextlib.suppress(OSError):  # it vanishes
            at = path.stat().st_mtime
            try:
                found[name] = ANSWERS.read(path)
                if found[name].place != name:
                    raise TraceError(f"{path}: is the answer of {found[name].place!r}; it must be that of {name!r}")
            except TraceError as error:
                found[name] = Answer(place=name, node=name, host="", began_at=at, ended_at=at, problem=str(error))
    return found
