"""Reachability of the model hub: one TCP connection, because the hub's own client retries for 20 s a file."""

import functools
import socket
import threading
import urllib.request
from urllib.parse import urlsplit

CONNECT_SECONDS = 2.0
"""Longest wait for a connection, the look-up of the name included."""
_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


@functools.cache
def hub_problem(endpoint: str) -> str | None:
    """Return why the hub at this endpoint is out of reach; None when it is not. A session sees one state of it."""
    if (address := hub_address(endpoint)) is None:
        return "HF_ENDPOINT or the proxy before it is not a web address"
    return (problem := connection_problem(*address)) and f"hub unreachable ({address[0]}:{address[1]}: {problem})"


def hub_address(endpoint: str) -> tuple[str, int] | None:
    """Return the host and port of this endpoint, or of the proxy before it; None where either is no web address."""
    parts = urlsplit(endpoint)
    proxy = (proxies := urllib.request.getproxies()).get(parts.scheme) or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    try:
        # Host and port only: the whole address may hold a user name and a password.
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # the port is not a number
        return None
    return (parts.hostname, port) if parts.hostname and port else None


def connection_problem(host: str, port: int) -> str | None:
    """Return why no TCP connection opened within CONNECT_SECONDS; None when one did."""
    answers: list[str | None] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            answers.append(None)
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            answers.append(getattr(error, "strerror", None) or str(error))

    # In a thread: neither a name server that does not answer nor a list of addresses obeys the socket's timeout.
    thread = threading.Thread(target=connect, name="hub-connection", daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    return answers[0] if answers else f"no answer within {CONNECT_SECONDS:g} s"
