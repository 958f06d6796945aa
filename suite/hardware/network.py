"""Whether the model hub can be reached: one TCP connection, since its own client retries for 20 s a file."""

from __future__ import annotations

import socket
import threading
import urllib.request
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


def hub_offline() -> bool:
    """True when HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) forbids the hub to this process."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def hub_address() -> tuple[str, int] | None:
    """Host and port that the hub's client would connect to: those of HF_ENDPOINT, or of the proxy before it.

    None when HF_ENDPOINT or the proxy's variable is not a web address.
    """
    from huggingface_hub import constants

    endpoint = urlsplit(constants.ENDPOINT)
    proxy = urllib.request.getproxies().get(endpoint.scheme)
    if proxy and not urllib.request.proxy_bypass(endpoint.netloc.rpartition("@")[2]):
        endpoint = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    try:
        # Never the whole address: it may hold a user name and a password.
        port = endpoint.port or _PORTS.get(endpoint.scheme)
    except ValueError:  # a port that is no number
        return None
    return (endpoint.hostname, port) if endpoint.hostname and port else None


def connection_problem(host: str, port: int, timeout_seconds: float = 2.0) -> str | None:
    """None when a TCP connection opens in time, else why it did not. Returns within `timeout_seconds`."""
    answers: list[str | None] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=timeout_seconds).close()
            answers.append(None)
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be one of a host
            answers.append(getattr(error, "strerror", None) or str(error))

    # A thread, since neither a name server that is silent nor a list of addresses obeys the socket's timeout.
    thread = threading.Thread(target=connect, name="hub-connection", daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    return answers[0] if answers else f"no answer within {timeout_seconds:g} s"
