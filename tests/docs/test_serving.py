"""The server of docs/serving.md answers every request: 400 and a short sentence for what is malformed."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


class Session:
    """Answers with the inputs' first two numbers."""

    def __init__(self, _: str):
        pass

    def get_modelmeta(self) -> Any:
        return SimpleNamespace(custom_metadata_map={"input_shape": "[2]", "classes": '["cat", "dog"]'})

    def run(self, _: None, inputs: dict[str, Any]) -> list[Any]:
        assert inputs["inputs"].dtype == numpy.float32
        with numpy.errstate(over="ignore"):
            return [inputs["inputs"] * numpy.float32(2)]


def make_server(monkeypatch: pytest.MonkeyPatch, **constants: int | float) -> Any:
    """Run the program of the page up to its own request, with another session and other constants."""
    runtime = ModuleType("onnxruntime")
    runtime.InferenceSession = Session  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    blocks = [block.partition("```")[0] for block in PAGE.read_text().split("```python\n")[1:]]
    (program,) = [block for block in blocks if "http.server" in block]
    program = program.partition("two_examples = ")[0]
    for name, value in constants.items():
        (line,) = [line for line in program.splitlines() if line.startswith(f"{name} = ")]
        program = program.replace(line, f"{name} = {value}")
    names: dict[str, Any] = {}
    exec(program, names)
    return names["server"]


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        made = make_server(patch, SECONDS=5)
    yield made
    made.shutdown()
    made.server_close()


def ask(server: Any, request: bytes) -> tuple[int, str, bytes]:
    """Return the status, its line and the body that the server answers."""
    with socket.create_connection(server.server_address, timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    line = head.split(b"\r\n")[0].decode()
    return int(line.split()[1]), line, body


def post(body: bytes, *headers: str) -> bytes:
    lines = ["POST / HTTP/1.1", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_numbers_are_answered(server: Any) -> None:
    status, _, body = ask(server, post(b"[[0.25, 1], [1e2, -3]]"))
    assert status == 200
    assert json.loads(body) == [{"cat": 0.5, "dog": 2.0}, {"cat": 200.0, "dog": -6.0}]


LONG = b"x" * 900_000
MALFORMED = {
    "nothing": b"",
    "not UTF-8": b"\xff\xfe[[1, 2]]",
    "not JSON": b"[[1, 2]",
    "deeply nested": b"[" * 100_000,
    "deeply nested and closed": b"[" * 100_000 + b"]" * 100_000,
    "a whole number beyond any float": b"[[1, " + b"9" * 400 + b"]]",
    "a whole number of too many digits": b"[[1, " + b"9" * 5000 + b"]]",
    "a string that latin-1 does not have": '[["\u732b", 2]]'.encode(),
    "a string with line breaks": b'[["1\\r\\nSet-Cookie: a=b", 2]]',
    "a long string": b'[["' + LONG + b'", 2]]',
    "numbers in strings": b'[["1", "2"]]',
    "NaN": b"[[NaN, 1]]",
    "infinity": b"[[1, -Infinity]]",
    "beyond float64": b"[[1e999, 1]]",
    "beyond float32": b"[[1e39, 1]]",
    "an answer beyond float32": b"[[3e38, 1]]",
    "null": b"[[null, 1]]",
    "an object": b'{"inputs": [[1, 2]]}',
    "a number": b"1",
    "true": b"[[true, false]]",
    "no examples": b"[]",
    "rows of other lengths": b"[[1, 2], [3]]",
    "another shape": b"[[1, 2, 3]]",
    "too long": b"[" + b" " * (1 << 20) + b"]",
    "many times too long": b" " * (6 << 20),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_body_is_answered_with_400_and_a_short_sentence(kind: str, server: Any) -> None:
    status, line, body = ask(server, post(MALFORMED[kind]))
    assert (status, line) == (400, "HTTP/1.0 400 Bad Request")
    assert list(json.loads(body)) == ["error"]
    assert len(body) < 120
    assert b"xxx" not in body
    assert b"Cookie" not in body


@pytest.mark.parametrize("length", ["", "-1", "1e3", "many", "\u00b2", "9" * 5000])
def test_a_malformed_length_is_answered_with_400(length: str, server: Any) -> None:
    request = f"POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode("latin-1")
    status, line, body = ask(server, request + b"[[1, 2]]")
    assert (status, line) == (400, "HTTP/1.0 400 Bad Request")
    assert b"Content-Length of 1 to 1048576 bytes" in body


def test_a_chunked_body_is_answered_with_400(server: Any) -> None:
    request = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n[[1, 2]]\r\n0\r\n\r\n"
    assert ask(server, request)[0] == 400


@pytest.mark.parametrize("method", [b"GET", b"x" * 50_000, b"POST / / /"])
def test_another_request_is_not_repeated(method: bytes, server: Any) -> None:
    status, line, body = ask(server, method + b" / HTTP/1.1\r\n\r\n")
    assert status in (400, 501)
    assert len(line) + len(body) < 200


def test_unfinished_requests_are_refused_after_a_while_and_do_not_hold_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = make_server(monkeypatch, SECONDS=0.3, THREADS=2)
    try:
        half = [socket.create_connection(server.server_address, timeout=20) for _ in range(4)]
        for connection, sent in zip(
            half, (post(b"[[1, 2]]")[:-3], b"POST / HT", b"", b"POST /"), strict=True
        ):
            connection.sendall(sent)
        assert ask(server, post(b"[[1, 2]]"))[0] == 200  # after two and two of them
        assert b" 400 " in half[0].recv(1 << 16)
        for connection in half:
            connection.close()
    finally:
        server.shutdown()
        server.server_close()


def test_no_more_threads_run_than_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server(monkeypatch, SECONDS=20, THREADS=2)
    running: list[int] = []
    together = threading.Lock()
    most = [0]
    handle = server.RequestHandlerClass.do_POST

    def counted(self: Any) -> None:
        with together:
            running.append(1)
            most[0] = max(most[0], len(running))
        handle(self)
        with together:
            running.pop()

    monkeypatch.setattr(server.RequestHandlerClass, "do_POST", counted)
    try:
        found: list[int] = []
        askers = [
            threading.Thread(target=lambda: found.append(ask(server, post(b"[[1, 2]]"))[0]))
            for _ in range(12)
        ]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        assert found == [200] * 12
        assert most[0] <= 2
    finally:
        server.shutdown()
        server.server_close()
