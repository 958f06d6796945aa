"""Models from the hub: the hub library is replaced at its two functions, its cache and its errors are the real ones."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import shutil
import sys
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from tiny_models import PARAMETERS, RANDOM, WEIGHTS, cut, digest, flip, tiny, write_folder

from tunecheck.assets import hub, resolve
from tunecheck.assets.folder import FILE_PATTERNS
from tunecheck.core.errors import WeightsDamaged, WeightsUnavailable

PINNED, NEWEST = "a" * 40, "b" * 40
TOKEN = "hf_verysecretindeed"


class Hub:
    """Repositories by id; a snapshot is laid out as the hub library does: blobs named by digest, links to them."""

    def __init__(self, cache):
        self.cache = cache
        self.answers = {}
        self.first_answers = {}
        """Errors to the question that goes before a download."""
        self.downloads = []
        self.harm_once = None

    def snapshot_download(
        self, repository, *, revision="main", force_download=False, local_files_only=False, **options
    ):
        """As huggingface_hub.snapshot_download; an answer that is an exception is raised."""
        answer = self.answers.get(repository)
        commit = {"main": NEWEST}.get(revision, revision)
        snapshot = self.cache / f"models--{repository.replace('/', '--')}" / "snapshots" / commit
        if local_files_only:
            if not snapshot.exists():
                raise errors.LocalEntryNotFoundError("nothing here")
            return str(snapshot)
        if isinstance(answer, BaseException):
            raise answer
        self.downloads.append((repository, revision, force_download, options))
        if force_download or not snapshot.exists():
            self._lay_out(answer, snapshot)
        if self.harm_once is not None:
            harm, self.harm_once = self.harm_once, None
            harm((snapshot / WEIGHTS).resolve())
        return str(snapshot)

    def repo_info(self, repository, *, repo_type, revision, timeout):
        """As HfApi.repo_info: it is there, and answers at once or not at all."""
        assert (repo_type, timeout) == ("model", hub.ANSWER_SECONDS)
        if (answer := self.first_answers.get(repository)) is not None:
            raise answer

    def model_info(self, repository, timeout=None):
        """As HfApi.model_info, as far as it is used."""
        assert timeout == hub.ANSWER_SECONDS
        return SimpleNamespace(sha=NEWEST)

    def _lay_out(self, files, snapshot):
        blobs = snapshot.parent.parent / "blobs"
        shutil.rmtree(snapshot, ignore_errors=True)
        snapshot.mkdir(parents=True)
        blobs.mkdir(exist_ok=True)
        for path in files.iterdir():
            name = digest(path) if path.suffix == ".safetensors" else digest(path)[:40]
            shutil.copy(path, blobs / name)
            (snapshot / path.name).symlink_to(os.path.relpath(blobs / name, snapshot))


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A hub that can be reached, with the tiny model at org/tiny; no token."""
    made = Hub(tmp_path / "hub")
    made.answers["org/tiny"] = write_folder(tmp_path / "files")
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: made)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    monkeypatch.setattr(hub.network, "hub_problem", lambda endpoint: None)
    return made


def source(**changed):
    """org/tiny at the pinned commit."""
    return {"kind": "hub", "id": "org/tiny", "revision": PINNED, **changed}


def answered(kind, status):
    """The hub library's error for an answer with this HTTP status."""
    client = sys.modules[errors.HTTPError.__module__.partition(".")[0]]  # httpx or httpx2
    request = client.Request("GET", f"https://hub.example/api?token={TOKEN}")
    return kind(f"{status} for {TOKEN}", response=client.Response(status, request=request))


def test_the_pinned_revision_is_used_through_links(fake, tmp_path):
    """Only files of a model are asked for, and the manifest lies in our own cache."""
    sha256 = digest(tmp_path / "files" / WEIGHTS)
    found = resolve(tiny(source(sha256=sha256)), allow_random=False)

    assert (found.weights.source, found.weights.identifier, found.weights.revision) == ("hub", "org/tiny", PINNED)
    assert (found.weights.sha256, found.weights.pretrained, found.weights.notes) == (sha256, True, ())
    assert (found.path / WEIGHTS).resolve().is_relative_to(tmp_path / "hub")
    assert json.loads((found.path / "manifest.json").read_text())["revision"] == PINNED
    repository, revision, forced, options = fake.downloads[0]
    assert (repository, revision, forced) == ("org/tiny", PINNED, False)
    assert options == {"allow_patterns": list(FILE_PATTERNS), "etag_timeout": 5.0}


def test_a_second_time_the_hub_is_not_asked(fake, monkeypatch):
    """Not even whether it is there."""
    first = resolve(tiny(source()), allow_random=False)
    monkeypatch.setattr(hub, "offline", lambda: pytest.fail("the hub was asked"))

    assert resolve(tiny(source()), allow_random=False) == first
    assert len(fake.downloads) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": PARAMETERS + 1}, f"org/tiny holds {PARAMETERS} parameters, configs/models/tiny.yaml says"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 2 in org/tiny, 3 in configs/models/tiny.yaml"),
    ],
)
def test_a_cached_model_is_held_against_a_description_that_was_edited_since(fake, changes, words):
    """It lies there from the time when the two agreed."""
    resolve(tiny(source()), allow_random=False)
    parameters = changes.pop("parameters", PARAMETERS)
    edited = tiny(source(), **changes).model_copy(update={"parameters": parameters})

    with pytest.raises(WeightsUnavailable, match=re.escape(words)):
        resolve(edited, allow_random=False)
    assert len(fake.downloads) == 1


def test_an_emptied_hub_cache_is_filled_again(fake, tmp_path):
    """Links that lead nowhere are not damage."""
    first = resolve(tiny(source()), allow_random=False)
    shutil.rmtree(tmp_path / "hub")

    assert resolve(tiny(source()), allow_random=False) == first


@pytest.mark.parametrize("harm", [cut, flip])
def test_a_damaged_download_is_fetched_once_more(fake, harm, said):
    """Said aloud; the hub's own digest finds it even where the YAML pins none."""
    fake.harm_once = harm
    found = resolve(tiny(source()), allow_random=False)

    assert [forced for _, _, forced, _ in fake.downloads] == [False, True]
    assert any("is damaged" in line and "Fetching once more" in line for line in said)
    assert len(found.weights.repairs) == 1
    assert "is damaged" in found.weights.repairs[0]
    assert found.weights.sha256 == digest(found.path / WEIGHTS)


def test_a_damaged_file_of_the_hub_cache_is_fetched_once_more(fake, said):
    """Also when it was whole the last time."""
    first = resolve(tiny(source()), allow_random=False)
    flip((first.path / WEIGHTS).resolve())

    assert resolve(tiny(source()), allow_random=False).weights.sha256 == first.weights.sha256
    assert [forced for _, _, forced, _ in fake.downloads] == [False, True]
    assert any("Renamed to" in line for line in said)


def test_a_file_that_stays_damaged_is_an_error(fake):
    """Found and expected digest; no other source is tried."""
    with pytest.raises(WeightsDamaged, match=rf"SHA-256 of its \d+ bytes is .*, expected {'0' * 64}"):
        resolve(tiny(source(sha256="0" * 64), RANDOM), allow_random=True)
    assert len(fake.downloads) == 2


def test_damage_is_an_error_offline(fake, monkeypatch):
    """It cannot be fetched again."""
    found = resolve(tiny(source()), allow_random=False)
    flip((found.path / WEIGHTS).resolve())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(WeightsDamaged, match="is damaged"):
        resolve(tiny(source(), RANDOM), allow_random=True)


def test_a_repository_without_safetensors_is_passed_over(fake, tmp_path):
    """With what it lacks."""
    (tmp_path / "files" / WEIGHTS).unlink()

    with pytest.raises(WeightsUnavailable, match=rf"hub: .*has no {WEIGHTS}"):
        resolve(tiny(source()), allow_random=False)


# Offline.


@pytest.mark.parametrize("reason", ["HF_HUB_OFFLINE is set", "hub unreachable (hub.example:443: no answer within 2 s)"])
def test_offline_the_hubs_own_cache_is_still_good(fake, monkeypatch, tmp_path, reason):
    """A pinned revision is the same with and without a network; what is not there is passed over."""
    fake.snapshot_download("org/tiny", revision=PINNED)
    monkeypatch.setattr(hub, "offline", lambda: reason)

    assert resolve(tiny(source()), allow_random=False).weights.revision == PINNED
    with pytest.raises(WeightsUnavailable) as error:
        resolve(tiny(source(id="org/other", fallback_ids=["org/more"])), allow_random=False)
    missing = "not whole in the hub's local cache"
    assert f"hub: {reason}; org/other: {missing}; org/more: {missing}\n" in str(error.value)


def test_offline_a_fallback_from_the_hubs_cache_will_do(fake, monkeypatch):
    """Its revision is the newest that the cache holds."""
    fake.snapshot_download("org/tiny", revision="main")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = resolve(tiny(source(id="org/gated", fallback_ids=["org/tiny"])), allow_random=False)

    assert (found.weights.identifier, found.weights.revision) == ("org/tiny", NEWEST)


# What the hub answers.


@pytest.mark.parametrize(
    ("error", "token", "sentence"),
    [
        (
            answered(errors.GatedRepoError, 401),
            None,
            "it is gated and no token is set: accept the licence at https://hub",
        ),
        (answered(errors.GatedRepoError, 401), TOKEN, "refuses the token (401): it is wrong or expired"),
        (answered(errors.GatedRepoError, 403), TOKEN, "may not read this repository (403): accept the licence at"),
        (answered(errors.HfHubHTTPError, 403), TOKEN, "let a fine-grained token read gated repositories"),
        (answered(errors.HfHubHTTPError, 401), TOKEN, "refuses the token (401)"),
        (answered(errors.RepositoryNotFoundError, 401), None, "(401), or it is private and no token is set"),
        (answered(errors.RepositoryNotFoundError, 404), TOKEN, "(404), or this token's account may not see it"),
        (answered(errors.RevisionNotFoundError, 404), None, "does not have the pinned revision; correct `revision`"),
        (answered(errors.HfHubHTTPError, 503), None, "answered with status 503; try again later"),
        (errors.OfflineModeIsEnabled(TOKEN), None, "the connection to the hub broke off (OfflineModeIsEnabled)"),
        (errors.LocalEntryNotFoundError(TOKEN), None, "broke off (LocalEntryNotFoundError); run again"),
        (TimeoutError(TOKEN), None, "the hub did not answer in time (TimeoutError)"),
        (errors.HTTPError(TOKEN), None, "broke off (HTTPError)"),
        (RuntimeError(TOKEN), None, "broke off (RuntimeError)"),
    ],
)
def test_every_answer_is_a_sentence(fake, monkeypatch, error, token, sentence):
    """Which says what to put right and never holds the token or an address with one."""
    fake.answers["org/tiny"] = error
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)

    with pytest.raises(WeightsUnavailable) as raised:
        resolve(tiny(source()), allow_random=False)
    assert sentence in str(raised.value)
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (TimeoutError(), "the hub did not answer in time (TimeoutError)"),
        (answered(errors.HfHubHTTPError, 429), "the hub answered with status 429"),
        (json.JSONDecodeError("Expecting value", "<html>", 0), "the answer is not a hub's: HF_ENDPOINT, a proxy or"),
        (errors.HFValidationError("repo id"), "a repository is called owner/name"),
    ],
)
def test_a_hub_that_is_of_no_use_is_asked_once(fake, error, sentence):
    """No download begins, whose retries take minutes; what lies in the hub's cache is used all the same."""
    resolve(tiny(source(revision=NEWEST)), allow_random=False)
    shutil.rmtree(fake.cache.parent / "cache")
    fake.first_answers["org/tiny"] = error

    assert resolve(tiny(source(revision=NEWEST)), allow_random=False).weights.source == "hub"
    with pytest.raises(WeightsUnavailable) as raised:
        resolve(tiny(source()), allow_random=False)
    assert sentence in str(raised.value)
    assert len(fake.downloads) == 1


def test_a_refusal_behind_a_missing_entry_is_seen(fake):
    """The hub library reports a 403 on the listing as "not in the local cache"; its cause says more."""
    error = errors.LocalEntryNotFoundError("see cause")
    error.__cause__ = answered(errors.HfHubHTTPError, 403)
    fake.answers["org/tiny"] = error

    with pytest.raises(WeightsUnavailable, match="no token is set"):
        resolve(tiny(source()), allow_random=False)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), RuntimeError("IO: (os error 28)")])
def test_a_disk_that_fills_up_is_told_as_such(fake, error):
    """With the disk of the hub's cache and how to move it."""
    fake.answers["org/tiny"] = error

    with pytest.raises(WeightsUnavailable, match=r"no space left in .*hub: about [\d,]+ bytes are needed, .* HF_HOME"):
        resolve(tiny(source()), allow_random=False)


# Fallbacks.


def test_a_gated_repository_has_open_copies(fake, tmp_path):
    """The first that fits is taken at its newest revision, and the notes tell the whole story."""
    fake.answers["org/gated"] = answered(errors.GatedRepoError, 401)
    fake.answers["org/gone"] = answered(errors.RepositoryNotFoundError, 404)
    fake.answers["org/wrong"] = write_folder(tmp_path / "wrong", hidden_size=32)
    model = tiny(source(id="org/gated", fallback_ids=["org/gone", "org/wrong", "org/tiny"]))
    found = resolve(model, allow_random=False)

    assert (found.weights.identifier, found.weights.revision, found.weights.pretrained) == ("org/tiny", NEWEST, True)
    assert [note.partition(":")[0] for note in found.weights.notes[:3]] == ["org/gated", "org/gone", "org/wrong"]
    assert "hidden_size is 32 in org/wrong, 16 in" in found.weights.notes[2]
    assert found.weights.notes[3] == "org/tiny was used instead"
    assert resolve(model, allow_random=False) == found


def test_a_broken_line_is_no_reason_for_other_weights(fake):
    """Only a refusal is."""
    fake.answers["org/gated"] = TimeoutError()

    with pytest.raises(WeightsUnavailable, match="did not answer in time"):
        resolve(tiny(source(id="org/gated", fallback_ids=["org/tiny"])), allow_random=False)
    assert fake.downloads == []


def test_a_fallback_may_not_hide_a_full_disk(fake):
    """Nor damage: both are errors of this machine, not of one repository."""
    fake.answers["org/gated"] = answered(errors.GatedRepoError, 401)
    fake.answers["org/full"] = OSError(errno.ENOSPC, "No space left")

    with pytest.raises(WeightsUnavailable, match="no space left"):
        resolve(tiny(source(id="org/gated", fallback_ids=["org/full", "org/tiny"])), allow_random=False)


def test_the_installed_library_takes_what_it_is_given():
    """The functions that are replaced above have these parameters, in huggingface_hub 1 and 2."""
    download = inspect.signature(huggingface_hub.snapshot_download).parameters
    info = inspect.signature(huggingface_hub.HfApi.model_info).parameters

    assert {"revision", "allow_patterns", "etag_timeout", "force_download", "local_files_only"} <= download.keys()
    assert "timeout" in info
    assert {"repo_type", "revision", "timeout"} <= inspect.signature(huggingface_hub.HfApi.repo_info).parameters.keys()
