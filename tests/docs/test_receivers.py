"""The receivers of the pages take what the service signs, and nothing else: in Python, TypeScript and Go."""

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from capstan.devnet.install import node_binary
from capstan.webhooks.kinds import Format
from capstan.webhooks.sealing import new_signing_secret
from capstan.webhooks.signing import delivery_headers
from tests.docs.markdown import read_page

PAGE = "docs/how-to/receive-webhooks.md"
NOW = 1_800_000_000
BODY = '{"id":"evt_1","data":{"symbol":"Ω\\n"}}'.encode()

# Each reads a list of cases from its standard input and prints a list of verdicts.
_PYTHON = """
import base64, json, sys
from receiver import verify
cases = json.load(sys.stdin)
print(json.dumps([verify(c["secret"], c["headers"], base64.b64decode(c["body"]), c["now"]) for c in cases]))
"""
_TYPESCRIPT = """
import { readFileSync } from "node:fs";
import { verify } from "./receiver.ts";
const cases = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map((c) => verify(c.secret, c.headers, Buffer.from(c.body, "base64"), c.now))));
"""
_GO = """
package main

import (
	"encoding/json"
	"os"
	"time"
)

func main() {
	var cases []struct {
		Secret  string
		Headers map[string]string
		Body    []byte
		Now     int64
	}
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		panic(err)
	}
	verdicts := make([]bool, 0, len(cases))
	for _, each := range cases {
		verdicts = append(verdicts, Verify(each.Secret, each.Headers, each.Body, time.Unix(each.Now, 0)))
	}
	json.NewEncoder(os.Stdout).Encode(verdicts)
}
"""


class Case(msgspec.Struct, frozen=True):
    """One delivery, and whether it is to be taken."""

    name: str
    secret: str
    headers: dict[str, str]
    body: bytes = BODY
    now: int = NOW
    genuine: bool = False


def _signed(form: Format, secrets: Sequence[str]) -> dict[str, str]:
    event_type = "log" if form == "A" else "NEW_BLOCK"
    made = delivery_headers(form, event_type, "evt_1", BODY, secrets, NOW)
    return {name.lower(): value for name, value in made.items()}


def cases(form: Format) -> list[Case]:
    """What a receiver of this format may meet."""
    secret, other = new_signing_secret(), new_signing_secret()
    headers = _signed(form, [secret])
    own = "x-service-signature" if form == "A" else "x-platform-signature"
    moment = "x-service-timestamp" if form == "A" else "webhook-timestamp"
    found = [
        Case("genuine", secret, headers, genuine=True),
        Case("almost too old", secret, headers, now=NOW + 300, genuine=True),
        Case("almost too early", secret, headers, now=NOW - 300, genuine=True),
        Case("rotated, with the new secret", secret, _signed(form, [secret, other]), genuine=True),
        Case("rotated, with the old secret", secret, _signed(form, [other, secret]), genuine=True),
        Case("too old", secret, headers, now=NOW + 301),
        Case("too early", secret, headers, now=NOW - 301),
        Case("of somebody else", other, headers),
        Case("changed body", secret, headers, body=BODY + b" "),
        Case("changed signature", secret, {**headers, own: headers[own][:-1] + "x"}),
        Case("shorter signature", secret, {**headers, own: headers[own][:-2]}),
        Case("empty signature", secret, {**headers, own: ""}),
        Case("changed time", secret, {**headers, moment: str(NOW + 1)}),
        Case("no headers", secret, {}),
    ]
    if form == "B":
        changed = {**headers, "webhook-signature": "v1,AAAA"}
        found += [
            Case("without a signed time", secret, changed),
            Case("of another event", secret, {**headers, "webhook-id": "evt_2"}),
        ]
    return found


def _command(language: str, directory: Path) -> list[str]:
    """Writes the receiver of the page with a driver beside it, and says how to run them."""
    names = {"python": "receiver.py", "typescript": "receiver.ts", "go": "receiver.go"}
    (block,) = [each for each in read_page(PAGE).blocks if each.directives.get("file") == names[language]]
    (directory / names[language]).write_text(block.text, encoding="utf-8")
    if language == "python":
        (directory / "driver.py").write_text(_PYTHON)
        return [sys.executable, "driver.py"]
    if language == "typescript":
        (directory / "driver.ts").write_text(_TYPESCRIPT)
        (directory / "package.json").write_text('{"type": "module"}')
        return [str(node_binary()), "driver.ts"]
    go = shutil.which("go")
    if go is None:
        pytest.skip("the go tool is not on this machine")
    (directory / "driver.go").write_text(_GO)
    (directory / "go.mod").write_text("module receiver\n\ngo 1.20\n")
    return [go, "run", "."]


@pytest.mark.parametrize("language", ["python", "typescript", "go"])
def test_a_receiver_takes_what_is_genuine_and_new_and_nothing_else(language: str, tmp_path: Path) -> None:
    every = [*cases("A"), *cases("B")]
    asked = [
        {"secret": c.secret, "headers": c.headers, "body": base64.b64encode(c.body).decode(), "now": c.now}
        for c in every
    ]
    done = subprocess.run(
        _command(language, tmp_path),
        cwd=tmp_path,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)
    wrong = [each.name for each, verdict in zip(every, verdicts, strict=True) if verdict is not each.genuine]
    assert wrong == []
