"""Repository of the Hugging Face hub: downloaded into the hub library's own cache and used there, through links."""

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tunecheck.assets.cache import Wanted, disk_full_is_said
from tunecheck.assets.folder import (
    FILE_PATTERNS,
    AnotherModel,
    ModelFolder,
    PassedOver,
    check_fit,
    model_files,
    open_sealed,
    seal,
    weight_files,
)
from tunecheck.config.schema import HubRows
from tunecheck.core.files import is_disk_full
from tunecheck.core.log import log
from tunecheck.hardware import network
from tunecheck.models.description import HubSource

T = TypeVar("T")


class Refused(PassedOver):
    """The hub answered, and this repository is not available to this user."""


def asked(repository: str, question: Callable[[], T], offline: bool) -> T:
    """Call the hub library and return its answer. Raises Refused or PassedOver with a reason, OSError for a full disk.

    `repository` is its page on the hub, a data set's begins with datasets/; `offline`: only the local cache was used.
    """
    from huggingface_hub import errors

    try:
        return question()
    except errors.HfHubHTTPError as error:
        raise _refusal(repository, error) from None
    except errors.LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _refusal(repository, error.__cause__) from None
        if offline:
            raise PassedOver("not whole in the hub's local cache") from None
        raise PassedOver(_broken(error.__cause__ or error)) from None
    except errors.HFValidationError:
        raise Refused("a repository is called owner/name; correct `id` in the YAML") from None
    except (ValueError, KeyError):  # no JSON, or of another shape
        instead = "HF_ENDPOINT, a proxy or the login page of a network stands in its place"
        raise PassedOver(f"the answer is not a hub's: {instead}") from None
    # HTTPError is the transport's base class, from httpx or httpx2 as the hub library has it
    except (errors.HTTPError, ConnectionError, TimeoutError, RuntimeError) as error:  # type: ignore[attr-defined]
        if is_disk_full(error):  # of hf_xet, whose errors are RuntimeErrors
            raise
        raise PassedOver(_broken(error)) from None


def _broken(error: BaseException) -> str:
    kind = type(error).__name__
    what = "the hub did not answer in time" if "Timeout" in kind else "the connection to the hub broke off"
    return f"{what} ({kind}); run again, what was downloaded is kept"


def _refusal(repository: str, error: Exception) -> PassedOver:
    from huggingface_hub import constants, errors, get_token

    status = getattr(getattr(error, "response", None), "status_code", None)
    has_token = get_token() is not None
    if isinstance(error, errors.RevisionNotFoundError):
        return Refused("the hub does not have the pinned revision; correct `revision` in the YAML")
    if isinstance(error, errors.EntryNotFoundError):
        return Refused("the pinned revision has no such file; correct `file` in the YAML")
    if status == 401 and has_token:
        return Refused("the hub refuses the token (401): it is wrong or expired; create a new one and `hf auth login`")
    if isinstance(error, errors.GatedRepoError) or status == 403:
        accept = f"accept the licence at {constants.ENDPOINT}/{repository}"
        if not has_token:
            return Refused(f"it is gated and no token is set: {accept}, then `hf auth login` or HF_TOKEN")
        why = f"the token is good, but its account may not read this repository ({status})"
        return Refused(f"{why}: {accept}, and let a fine-grained token read gated repositories")
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        token = "or this token's account may not see it" if has_token else "or it is private and no token is set"
        return Refused(f"the hub has no such repository ({status}), {token}")
    return PassedOver(f"the hub answered with status {status}; try again later")


ANSWER_SECONDS = 5.0
"""Timeout for the hub's answer to one request about a repository, not for a whole download."""


def deliver(source: HubSource, wanted: Wanted) -> ModelFolder:
    """Return the pinned revision; where the hub refuses it, the first fallback that delivers. Raises PassedOver."""
    try:
        return _delivered(source, wanted)
    except PassedOver as reason:
        # A broken connection is no reason to use other weights; a refusal is, and so is being offline from the start.
        if (problem := offline()) is None and not isinstance(reason, Refused):
            raise
        answers = [f"{source.id}: {reason}"]
    for repository in source.fallback_ids:
        try:
            copy = source.model_copy(update={"id": repository, "revision": _newest(repository), "sha256": None})
            return _delivered(copy, wanted, (*answers, f"{repository} was used instead"))
        except (PassedOver, AnotherModel) as reason:
            answers.append(f"{repository}: {reason}")
    raise PassedOver("; ".join(answers if problem is None else [problem, *answers]))


def offline() -> str | None:
    """Return why no request to the hub is worth making; None when it can be reached. Takes 2 s at most."""
    from huggingface_hub import constants, is_offline_mode

    return "HF_HUB_OFFLINE is set" if is_offline_mode() else network.hub_problem(constants.ENDPOINT)


def _delivered(source: HubSource, wanted: Wanted, notes: tuple[str, ...] = ()) -> ModelFolder:
    """Return this commit of this repository as a verified folder of links into the hub's cache."""
    from huggingface_hub import snapshot_download

    target = wanted.shelf.target("hub", source.id, source.revision, source.sha256)
    fetch = functools.partial(snapshot_download, source.id, allow_patterns=list(FILE_PATTERNS))

    def link(again: bool) -> None:
        snapshot = downloaded(wanted.model.name, source, "model", fetch, wanted.weights_bytes, again=again)
        names = model_files(snapshot)
        expected = {name: digest for name in names if (digest := blob_digest(snapshot / name)) is not None}
        if source.sha256 is not None:
            expected |= dict.fromkeys(weight_files(snapshot), source.sha256)
        differences = check_fit(snapshot, wanted.model, source.id, exact=False)
        origin = wanted.origin("hub", source.id, source.revision, notes=(*notes, *differences))
        with wanted.shelf.building(target, needed_bytes=0) as built:
            for name in names:
                (built / name).symlink_to(snapshot.resolve() / name)
            seal(built, origin, expected, remedy=f"delete {snapshot} with its blobs (`hf cache`), fetch again")

    return wanted.shelf.keep(target, link, open_sealed, offline)


def blob_digest(path: Path) -> str | None:
    """Return the digest that the hub itself gave: a large file is a link to a blob named by its SHA-256."""
    name = Path(os.readlink(path)).name if path.is_symlink() else ""
    return name if re.fullmatch(r"[0-9a-f]{64}", name) else None


def downloaded(
    name: str, source: HubSource | HubRows, kind: str, fetch: Callable[..., str], needed_bytes: int, *, again: bool
) -> Path:
    """Return what `fetch`, a function of the hub library, downloads of this revision; anew if `again`.

    The hub is asked about this repository (of `kind` "model" or "dataset") before: the library would wait minutes for
    one that does not answer. `name` and `needed_bytes` are for messages. Raises PassedOver.
    """
    from huggingface_hub import HfApi, constants

    page = source.id if kind == "model" else f"{kind}s/{source.id}"
    wanted = functools.partial(fetch, revision=source.revision, etag_timeout=ANSWER_SECONDS)

    def held() -> Path:
        return Path(asked(page, functools.partial(wanted, local_files_only=True), True))

    with disk_full_is_said(name, Path(constants.HF_HUB_CACHE), needed_bytes):
        if offline():
            return held()
        log.info(f"{name}: fetching {source.id} at {source.revision[:12]} from the hub")
        ask = functools.partial(HfApi().repo_info, source.id, repo_type=kind, revision=source.revision)
        try:
            asked(page, functools.partial(ask, timeout=ANSWER_SECONDS), False)
        except PassedOver as refusal:
            try:
                return held()
            except PassedOver:
                raise refusal from None
        return Path(asked(page, functools.partial(wanted, force_download=again, local_files_only=False), False))


def _newest(repository: str) -> str:
    """Return the newest revision's commit hash; offline that of the newest one in the cache. Raises PassedOver."""
    from huggingface_hub import HfApi, snapshot_download

    if offline():
        return Path(asked(repository, lambda: snapshot_download(repository, local_files_only=True), True)).name
    return str(asked(repository, lambda: HfApi().model_info(repository, timeout=ANSWER_SECONDS).sha, False))
