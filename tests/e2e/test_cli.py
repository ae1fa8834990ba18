"""The command line as an operator meets it: output, exit codes, messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from capstan.devnet.install import NodeProject
from tests.support.devnet import running_devnet
from tests.support.service import RunCapstan, run_command, run_json


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    return ["--data-dir", str(tmp_path / "data")]


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["serve"],
        ["dev"],
        ["migrate"],
        ["doctor"],
        ["keys"],
        ["keys", "create"],
        ["keys", "list"],
        ["keys", "revoke"],
        ["accounts"],
        ["accounts", "create"],
        ["accounts", "list"],
        ["accounts", "suspend"],
        ["accounts", "resume"],
        ["networks"],
        ["networks", "list"],
        ["networks", "check"],
    ],
    ids=lambda command: " ".join(command) or "capstan",
)
def test_every_command_explains_itself(command: list[str]) -> None:
    done = run_command(*command, "--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout
    # A sentence of explanation, not just a list of options.
    assert len(done.stdout.split("Options:")[0].split()) > 5


def test_wrong_usage_exits_with_2() -> None:
    assert run_command("keys", "create", "--plan", "gold").returncode == 2
    assert run_command("nothing").returncode == 2


def test_wrong_settings_exit_with_3_and_name_file_key_and_reason(tmp_path: Path) -> None:
    config = tmp_path / "capstan.toml"
    config.write_text("[server]\nprot = 9000\n")
    done = run_command("keys", "list", "--config", str(config))
    assert done.returncode == 3
    assert str(config) in done.stderr
    assert "server.prot" in done.stderr
    assert 'did you mean "port"' in done.stderr
    assert "Traceback" not in done.stderr
    config.write_text("[server]\nport = 'x'\n")
    done = run_command("serve", "--config", str(config))
    assert done.returncode == 3
    assert "server.port" in done.stderr


def test_a_database_that_is_away_exits_with_4(data: list[str]) -> None:
    done = run_command("keys", "list", *data, settings={"storage.url": "postgresql://a:secret@127.0.0.1:1/x"})
    assert done.returncode == 4
    assert "database" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_postgresql_must_be_migrated_by_hand(postgres_database: str, data: list[str]) -> None:
    settings = {"storage.url": postgres_database}
    before = run_command("keys", "create", *data, settings=settings)
    assert before.returncode == 3
    assert "capstan migrate" in before.stderr
    first = run_json("migrate", *data, settings=settings)
    assert first["before"] is None
    assert run_json("migrate", *data, settings=settings)["before"] == first["after"]
    assert run_command("keys", "create", *data, settings=settings).returncode == 0


def test_keys_are_made_listed_and_revoked(capstan: RunCapstan) -> None:
    made = capstan("keys", "create", "--mode", "live", "--scope", "rpc:read", "--name", "first")
    assert made["key"].startswith("svc_live_")
    assert made["scopes"] == ["rpc:read"]
    listed = capstan("keys", "list")
    assert [key["id"] for key in listed] == [made["id"]]
    assert "key" not in listed[0]
    assert made["key"] not in json.dumps(listed)
    second = capstan("keys", "create", "--account", made["account"])
    assert second["account"] == made["account"]
    assert capstan("keys", "revoke", made["id"])["revoked_at"] is not None
    assert [bool(key["revoked_at"]) for key in capstan("keys", "list", "--account", made["account"])] == [True, False]


def test_the_key_alone_goes_to_standard_output(data: list[str]) -> None:
    done = run_command("keys", "create", *data)
    assert done.stdout.strip().startswith("svc_test_")
    assert len(done.stdout.split()) == 1
    assert "not shown again" in done.stderr


def test_refusals_exit_with_1_and_say_why(capstan: RunCapstan, data: list[str]) -> None:
    made = capstan("keys", "create")
    for _ in range(4):
        capstan("keys", "create", "--account", made["account"])
    refused = run_command("keys", "create", "--account", made["account"], *data)
    assert refused.returncode == 1
    assert "allows 5 keys" in refused.stderr
    unknown = run_command("keys", "revoke", "key_none", *data)
    assert unknown.returncode == 1
    assert "key_none" in unknown.stderr


def test_accounts_carry_their_own_limits(capstan: RunCapstan) -> None:
    made = capstan("accounts", "create", "big", "--plan", "enterprise", "--requests-per-second", "500", "--keys", "0")
    assert made["limits"] == {"requests_per_second": 500, "keys": 0}
    assert capstan("accounts", "suspend", made["id"])["status"] == "suspended"
    assert capstan("accounts", "list")[0]["status"] == "suspended"
    assert capstan("accounts", "resume", made["id"])["status"] == "active"


def _finding(findings: list[dict[str, Any]], check: str) -> dict[str, Any]:
    return next(found for found in findings if found["check"] == check)


def test_doctor_finds_a_healthy_installation_healthy(
    data: list[str], node_project: NodeProject, valkey_url: str
) -> None:
    # A chain of its own: other tests may have moved the clock of the shared one ahead.
    with running_devnet(node_project) as devnet:
        settings = {"networks": {"ethereum/devnet": {"upstreams": [devnet.url]}}, "redis.url": valkey_url}
        done = run_command("doctor", "--json", *data, settings=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(done.stdout)
    assert {found["state"] for found in findings} == {"ok"}
    checks = {found["check"].split()[0] for found in findings}
    assert checks == {"settings", "data", "database", "redis", "clock", "upstream", "signers", "paymasters"}


def test_doctor_says_what_to_do_about_what_is_wrong(data: list[str], evm_devnet_url: str) -> None:
    settings = {
        "networks": {
            "ethereum/sepolia": {"upstreams": [evm_devnet_url]},
            "base/sepolia": {"upstreams": ["http://127.0.0.1:1/secret-path"]},
        },
        "redis.url": "redis://127.0.0.1:1/0",
        "storage.url": "postgresql://a:secret@127.0.0.1:1/x",
    }
    done = run_command("doctor", "--json", *data, settings=settings)
    assert done.returncode == 1
    findings = json.loads(done.stdout)
    assert "storage.url" in _finding(findings, "database")["message"]
    assert "redis.url" in _finding(findings, "redis")["message"]
    wrong = next(found for found in findings if "ethereum/sepolia" in found["check"])
    assert "31337" in wrong["message"]
    assert "11155111" in wrong["message"]
    away = next(found for found in findings if "base/sepolia" in found["check"])
    assert away["state"] == "failed"
    assert "secret" not in done.stdout


def test_networks_are_listed_and_checked(data: list[str], evm_devnet_url: str) -> None:
    settings = {"networks": {"ethereum/devnet": {"upstreams": [evm_devnet_url]}}}
    served = run_json("networks", "list", *data, settings=settings)
    assert [network["name"] for network in served] == ["ethereum/devnet"]
    every = run_json("networks", "list", "--all", *data, settings=settings)
    assert len(every) >= 25
    checked = run_command("networks", "check", *data, settings=settings)
    assert checked.returncode == 0
    assert "ok" in checked.stdout


def test_reading_commands_do_not_make_a_database(tmp_path: Path) -> None:
    nowhere = tmp_path / "typo"
    done = run_command("keys", "list", "--data-dir", str(nowhere))
    assert done.returncode == 4
    assert str(nowhere) in done.stderr
    assert not nowhere.exists()
