# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One GET, against servers on this machine: what is sent to whom, how much is taken, and what stands in the way."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from ansible.module_utils.sparklanes.common import web
from pin_servers import Server, serving

SECRET = "Bearer tok"


class Plain(Server):
    def answer(self, path: str, secret: str) -> tuple[int, dict[str, str], bytes]:
        return 200, {}, b"right"


@pytest.fixture
def server() -> Iterator[Plain]:
    kept = Plain()
    with serving(kept):
        yield kept


def url(server: Server, path: str = "/x") -> str:
    return f"http://{server.address}{path}"


def test_the_secret_goes_with_the_question(server: Plain) -> None:
    assert web.get(url(server), 10, SECRET).body == b"right"
    assert server.asked == [("GET", "/x", SECRET)]


@pytest.mark.parametrize(("along", "second"), [(False, ""), (True, SECRET)])
def test_a_redirect_on_the_same_server_takes_the_secret_along_only_where_asked(server: Plain, along: bool, second: str) -> None:
    server.first = [("/x", 307, {"Location": "/y"}, b"")]
    assert web.get(url(server), 10, SECRET, along=along).url.endswith("/y")
    assert [secret for _, _, secret in server.asked] == [SECRET, second]


def test_another_server_never_sees_the_secret(server: Plain) -> None:
    with serving(other := Plain()):
        server.first = [("/x", 302, {"Location": f"http://{other.address}/blob"}, b"")]
        web.get(url(server), 10, SECRET, along=True)
        assert other.asked == [("GET", "/blob", "")]


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_a_redirect_to_what_is_no_web_server_is_refused(server: Plain, place: str) -> None:
    server.first = [("/x", 302, {"Location": place}, b"")]
    with pytest.raises((web.Unanswered, web.Refused)):
        web.get(url(server), 10)


def test_tls_is_not_left_on_the_way() -> None:
    handler = web._Redirects("", False)
    request = web.urllib.request.Request("https://hub.test/x")
    with pytest.raises(OSError, match="without the TLS that was asked for"):
        handler.redirect_request(request, None, 302, "", {}, "http://hub.test/x")


def test_redirects_in_a_circle_end(server: Plain) -> None:
    server.first = [("/x", 302, {"Location": "/x"}, b"")] * 50
    with pytest.raises(web.Refused):
        web.get(url(server), 10)
    assert len(server.asked) <= web.REDIRECTS + 2


def test_too_much_is_refused_and_not_cut(server: Plain) -> None:
    with pytest.raises(web.Unanswered, match="its answer has more than 4 bytes"):
        web.get(url(server), 4)
    assert web.get(url(server), 5).body == b"right"


def test_what_was_cut_is_refused(server: Plain) -> None:
    server.first = [("/x", 200, {"Content-Length": "90"}, b"half")]
    with pytest.raises(web.Unanswered, match="was cut after 4 bytes, 86 before its end"):
        web.get(url(server), 100, timeout=1)


def test_an_answer_that_comes_drop_by_drop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drops(io.BytesIO):
        length = None

        def read1(self, size: int | None = -1) -> bytes:
            return super().read1(1)

    clock = iter(range(0, 10_000, 60))
    monkeypatch.setattr(web.time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(OSError, match="has not ended after 600 s"):
        web.whole(Drops(b"x" * 5000), 10_000)


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_short_of_something_is_asked_again_as_it_says(
    server: Plain, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(web.time, "sleep", waited.append)
    server.first = [("/x", status, {"Retry-After": "40"}, b"")] * 2
    assert web.get(url(server), 10).body == b"right"
    assert waited == [40.0, 40.0]
    server.first = [("/x", status, {"Retry-After": "3600"}, b"later")]
    with pytest.raises(web.Refused) as refused:
        web.get(url(server), 10)
    assert (refused.value.status, refused.value.body, refused.value.attempt) == (status, b"later", 1)


def test_nobody_there_and_no_address() -> None:
    with pytest.raises(web.Unanswered, match="refused"):
        web.get("http://127.0.0.1:9/x", 10)
    with pytest.raises(web.Unanswered):
        web.get("http://[half/x", 10)


def test_a_proxy_is_named_and_never_asked_for_this_machine(server: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://user:pass@127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert web.get(url(server), 10).body == b"right", "a proxy would look on its own machine"
    with pytest.raises(web.Unanswered, match=r"through the proxy http://.*hidden") as refused:
        web.get("http://hub.test/x", 10)
    assert "pass" not in str(refused.value)


def test_who_answers_at_an_address() -> None:
    assert web.origin("https://Hub.test/a") == web.origin("https://hub.test:443/b")
    assert web.origin("https://hub.test/a") != web.origin("http://hub.test:443/a")


@pytest.mark.parametrize(
    ("address", "seen"),
    [("https://h/", False), ("http://127.0.0.1:9", False), ("http://h/", True), ("ftp://h", True), ("http://[half", True)],
)
def test_what_others_can_read(address: str, seen: bool) -> None:
    assert web.in_the_open(address) is seen
