"""Secrets in the spellings in which servers repeat them; and ordinary text stays as it is."""

from __future__ import annotations

import base64
import html
import json
import textwrap
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ctxbench.http_client import Target
from pytest_ctxbench.local.emulator.process import start_emulator
from pytest_ctxbench.local.process import start_endpoint
from pytest_ctxbench.redaction import MASK, SHORTEST, redact, redacted, url_secrets

ROOT = Path(__file__).parents[1]
KEYS = (
    "sk-proj-0123456789abcdefABCDEF_-xyz",
    "AIzaSyA-1234567890abcdefghijklmnopqrstu",
    "key/with+odd&signs=%41\"quotes'<>\\back",
    "schl\u00fcssel-\u20ac-\U0001f511-1234567890",
    "two words of a key",
)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


SPELLINGS = {
    "plain": lambda key: key,
    "upper case": str.upper,
    "URL": lambda key: quote(key, safe=""),
    "URL in small letters": lambda key: quote(key, safe="").lower(),
    "form": quote_plus,
    "JSON": lambda key: json.dumps({"key": key}),
    "JSON in JSON": lambda key: json.dumps(json.dumps([key])),
    "Python": repr,
    "HTML": html.escape,
    "base64": encoded,
    "Basic": lambda key: encoded(f"user@example.com:{key}"),
    "Basic without a user": lambda key: encoded(f":{key}"),
    "Basic as user": lambda key: encoded(f"{key}:"),
    "URL-safe base64": lambda key: base64.urlsafe_b64encode(key.encode()).decode(),
    "line break": lambda key: key[:7] + "\n" + key[7:],
    "CRLF and indent": lambda key: key[:7] + "\r\n    " + key[7:],
    "escaped line break": lambda key: key[:7] + "\\n" + key[7:],
    "wrapped base64": lambda key: "\n".join(textwrap.wrap(encoded(key), 10)),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_is_masked(spell, key: str) -> None:  # type: ignore[no-untyped-def]
    written = spell(key)
    clean = redact(f"Authorization: Bearer {written}; request 17", [key])
    assert MASK in clean
    assert clean.startswith("Authorization: Bearer ")
    assert clean.endswith("; request 17")
    assert key not in clean
    assert len(clean) < len("Authorization: Bearer ; request 17") + len(MASK) + 30, "more than what stood before it"


def test_short_keys_and_ordinary_words_do_not_spoil_records() -> None:
    text = "test the key: CRITICAL, 45, Gold, none, a-b-c-d"
    for key in ("", " ", "k", "none", "test", "Gold", "a" * (SHORTEST - 1), "CRITICAL-"):
        assert redact(text, [key]) == text
    assert redact("x" * (SHORTEST - 1), ["x" * SHORTEST]) == "x" * (SHORTEST - 1)


@given(st.text(max_size=200))
def test_text_without_the_secret_stays(text: str) -> None:
    assert redact(text, [KEYS[0]]) == text


def test_of_two_secrets_the_longer_one_goes_first() -> None:
    assert redact("0123456789abcdef", ["01234567", "0123456789abcdef"]) == MASK


def test_a_key_with_a_line_end_from_a_file() -> None:
    assert redact(f"no: {KEYS[0]}.", [KEYS[0] + "\n"]) == f"no: {MASK}."


def test_a_whole_record() -> None:
    record = {"error": f"bad {KEYS[0]}", "trace": [{"args": {KEYS[0]: [KEYS[0], 1, None, True, 0.5]}}], "run": 3}
    clean = redacted(record, [KEYS[0]])
    assert clean == {"error": "bad ***", "trace": [{"args": {MASK: [MASK, 1, None, True, 0.5]}}], "run": 3}
    assert record["error"].endswith(KEYS[0])


def test_a_long_text_is_searched_in_linear_time() -> None:
    text = (KEYS[0][:20] + " ") * 200_000
    assert redact(text, KEYS) == text
    assert redact(text + KEYS[0], KEYS).endswith(MASK)


def test_passwords_in_urls() -> None:
    assert url_secrets("http://me:pass%20word@proxy:8080") == {"pass%20word", "pass word"}
    assert url_secrets("http://proxy:8080") == url_secrets("http://[") == set()
    target = Target.of("https://me:unmistakable@host/mcp?key=unmistakable", "", "")
    assert "unmistakable" not in f"{target!r} {target.shown} {target.redact('no: unmistakable')}"


def test_no_key_in_a_child_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoint, SQL engines and emulator, as the system shows them."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("the system does not show environments")
    for name in ("ANTHROPIC_API_KEY", "CDATA_ACCESS_TOKEN", "SOME_OTHER_SECRET", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://me:unmistakable-value@127.0.0.1:9")
    context = ROOT / "setup" / "context"
    with (
        start_endpoint(data=None, context=context, password="unmistakable-password") as endpoint,
        start_emulator() as emulator,
    ):
        pids = [endpoint.pid, emulator.pid]
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(path.read_text().rpartition(")")[2].split()[1]) == endpoint.pid:
                    pids.append(int(path.parent.name))
            except OSError:
                continue  # it has just ended
        assert len(pids) >= 3
        for pid in pids:
            for kind in ("environ", "cmdline"):
                assert b"unmistakable" not in Path(f"/proc/{pid}/{kind}").read_bytes(), (pid, kind)


def test_what_holds_no_secret_is_left_as_it_is():
    value = {"answer": "plain \\n text", "rows": [{"n": 1, "x": None}, ["key/with", "+odd"]]}
    assert redacted(value, KEYS) is value


def test_a_secret_anywhere_in_a_value_is_masked_there_alone():
    key = KEYS[0]
    value = {"a": ["fine", {key: f"x {key} y"}], "b": ("in a tuple", key), "c": [key[:9], key[9:]]}
    assert redacted(value, KEYS) == {
        "a": ["fine", {MASK: f"x {MASK} y"}], "b": ["in a tuple", MASK], "c": [key[:9], key[9:]]
    }  # fmt: skip
