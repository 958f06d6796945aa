"""The hub's errors in words. None contains the token or the hub's own text, which may contain a signed URL."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from tunecheck.assets.folder import PassedOver

T = TypeVar("T")


class Refused(PassedOver):
    """The hub answered, and this repository is not available to this user."""


def asked(repository: str, question: Callable[[], T], offline: bool) -> T:
    """Call the hub library and return its answer. Raises Refused or PassedOver with a reason for every failure.

    `repository`: its page on the hub, so that a data set's begins with datasets/. `offline`: only the local cache was
    used. A full disk is raised as OSError.
    """
    # The transport's base class, from httpx or httpx2 as the hub library has it.
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        LocalEntryNotFoundError,
    )

    try:
        return question()
    except HfHubHTTPError as error:
        raise _refusal(repository, error) from None
    except LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, HfHubHTTPError):
            raise _refusal(repository, error.__cause__) from None
        if offline:
            raise PassedOver("not whole in the hub's local cache") from None
        raise PassedOver(_broken(error.__cause__ or error)) from None
    except (HTTPError, ConnectionError, TimeoutError) as error:
        raise PassedOver(_broken(error)) from None
    except HFValidationError:
        raise Refused("a repository is called owner/name; correct `id` in the YAML") from None
    except (ValueError, KeyError):  # no JSON, or of another shape
        raise PassedOver(
            "the answer is not a hub's: HF_ENDPOINT, a proxy or the login page of a network stands in its place"
        ) from None
    except RuntimeError as error:  # hf_xet has no other class
        if "os error 28" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise PassedOver(_broken(error)) from None


def _broken(error: BaseException) -> str:
    kind = type(error).__name__
    what = "the hub did not answer in time" if "Timeout" in kind else "the connection to the hub broke off"
    return f"{what} ({kind}); run again, what was downloaded is kept"


def _refusal(repository: str, error: Exception) -> PassedOver:
    """Return the error for no token, a refused token, a licence not accepted, or a missing repository."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status = getattr(getattr(error, "response", None), "status_code", None)
    page = f"{constants.ENDPOINT}/{repository}"
    has_token = get_token() is not None
    if isinstance(error, RevisionNotFoundError):
        return Refused("the hub does not have the pinned revision; correct `revision` in the YAML")
    if isinstance(error, EntryNotFoundError):
        return Refused("the pinned revision has no such file; correct `file` in the YAML")
    if status == 401 and has_token:
        return Refused("the hub refuses the token (401): it is wrong or expired; create a new one and `hf auth login`")
    if isinstance(error, GatedRepoError) or status == 403:
        if has_token:
            return Refused(
                f"the token is good, but its account may not read this repository ({status}): accept the licence at "
                f"{page}, and let a fine-grained token read gated repositories"
            )
        return Refused(
            f"it is gated and no token is set: accept the licence at {page}, then `hf auth login` or HF_TOKEN"
        )
    if isinstance(error, RepositoryNotFoundError) or status == 401:
        token = "or this token's account may not see it" if has_token else "or it is private and no token is set"
        return Refused(f"the hub has no such repository ({status}), {token}")
    return PassedOver(f"the hub answered with status {status}; try again later")
