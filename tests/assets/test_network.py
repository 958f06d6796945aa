"""Is the hub within reach? Answered by one plain connection, in two seconds at most, once a process."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tunecheck.hardware import network


@pytest.fixture
def connection_problem():
    """The real question, its memory empty before and after."""
    network.hub_problem.cache_clear()
    yield network.hub_problem
    network.hub_problem.cache_clear()


def test_a_closed_port_is_found_at_once(connection_problem):
    """With the address and the system's reason."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    problem = connection_problem(f"http://127.0.0.1:{port}")

    assert problem == f"hub unreachable (127.0.0.1:{port}: Connection refused)"


def test_an_open_port_is_enough(connection_problem):
    """No request is made."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert connection_problem(f"http://127.0.0.1:{server.getsockname()[1]}") is None


def test_a_silent_network_takes_no_longer_than_the_limit(connection_problem, monkeypatch):
    """Looking up the name may hang longer than any time limit of the socket; it is asked once a process."""
    monkeypatch.setattr(network, "CONNECT_SECONDS", 0.1)
    done = threading.Event()

    def never(address, timeout):
        done.wait(10)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", never)
    started = time.perf_counter()
    problems = {connection_problem("https://hub.example") for _ in range(5)}
    done.set()

    assert problems == {"hub unreachable (hub.example:443: no answer within 0.1 s)"}
    assert time.perf_counter() - started < 5, "one try of 0.1 s serves all five, where the connection would take 10"


@pytest.mark.parametrize(
    ("endpoint", "environment", "address"),
    [
        ("https://hub.example", {}, ("hub.example", 443)),
        ("http://hub.example:8080/x", {}, ("hub.example", 8080)),
        ("https://hub.example", {"https_proxy": "http://gate.example:3128"}, ("gate.example", 3128)),
        ("https://hub.example", {"https_proxy": "gate.example:3128"}, ("gate.example", 3128)),
        ("https://hub.example", {"all_proxy": "socks5://gate.example"}, ("gate.example", 1080)),
        ("https://hub.example", {"https_proxy": "http://gate:1", "no_proxy": "hub.example"}, ("hub.example", 443)),
    ],
)
def test_a_proxy_is_asked_instead(monkeypatch, endpoint, environment, address):
    """Where the environment names one for the host, the hub itself may well be out of reach."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert network.hub_address(endpoint) == address
