"""`capstan gas paymaster` on a real chain: a paymaster from its deployment to the operation that it pays for."""

import json
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from capstan.userops.versions import Version
from tests.support.devnet import EvmDevnet, wait_until
from tests.support.gas import Sender, serving_gas
from tests.support.service import run_command, run_json

_OWNER = 16


def run(settings: dict[str, Any], *arguments: str) -> Any:
    """The JSON that a command prints."""
    return run_json("gas", "paymaster", *arguments, settings=settings)


@pytest.mark.parametrize("version", ["0.8"])
def test_a_paymaster_is_deployed_funded_used_and_emptied(
    tmp_path: Path, evm_devnet: EvmDevnet, version: Version
) -> None:
    deployment = evm_devnet.deployment
    network: dict[str, Any] = {"upstreams": [evm_devnet.url], "entry_points": deployment.entry_points}
    settings: dict[str, Any] = {
        "data_dir": str(tmp_path / "data"),
        "gas.signer": "0x" + bytes(Account.create().key).hex(),
        "gas.owner": deployment.accounts[_OWNER].private_key,
        "networks": {"ethereum/devnet": network},
    }
    options = ("--entry-point", version)
    address = run(settings, "deploy", "ethereum/devnet", *options)["paymaster"]
    network["paymasters"] = {version: address}
    run(settings, "deposit", "ethereum/devnet", "1.5", *options)
    run(settings, "stake", "ethereum/devnet", "0.1", *options)
    receiver = Account.create().address
    run(settings, "withdraw", "ethereum/devnet", "0.25", "--to", receiver, *options)
    assert int(evm_devnet.call("eth_getBalance", receiver, "latest"), 16) == 25 * 10**16
    found = run(settings, "show", "ethereum/devnet", *options)
    assert (found["deposit"], found["stake"], found["staked"]) == ("1.25", "0.1", True)
    assert (found["owner"], found["signer_fits"]) == (deployment.accounts[_OWNER].address, True)
    findings = json.loads(run_command("doctor", "--json", settings=settings).stdout)
    (state,) = [each["state"] for each in findings if each["check"].startswith("paymaster ")]
    assert state == "ok"
    served = tmp_path / "served"
    served.mkdir()
    chosen = {"gas.signer": settings["gas.signer"]}
    with serving_gas(served, evm_devnet, chosen, paymasters=network["paymasters"]) as gas:
        sender = Sender(evm_devnet, version)
        operation = sender.operation()
        answer = gas.sponsored(gas.policy()["id"], operation, entry_point=sender.entry_point)
        assert sender.land(sender.signed(operation, answer))["status"] == "0x1"
        labels = {"network": "ethereum/devnet", "version": version}
        wait_until(lambda: gas.gateway.metric("capstan_paymaster_low", **labels) == 0, 30, "a look at the deposit")


def test_a_low_deposit_and_a_wrong_signer_are_told(tmp_path: Path, evm_devnet: EvmDevnet) -> None:
    deployment = evm_devnet.deployment
    network = {
        "upstreams": [evm_devnet.url],
        "entry_points": deployment.entry_points,
        "paymasters": deployment.paymasters,
    }
    settings: dict[str, Any] = {
        "data_dir": str(tmp_path),
        "gas.signer": deployment.paymaster_signer.private_key,
        "gas.least_deposit_gwei": 10**12,
        "networks": {"ethereum/devnet": network},
    }
    done = run_command("doctor", "--json", settings=settings)
    found = {each["check"]: each for each in json.loads(done.stdout) if each["check"].startswith("paymaster ")}
    assert {each["state"] for each in found.values()} == {"warning"}
    assert all("gas.least_deposit_gwei" in each["message"] for each in found.values())
    settings["gas.signer"] = deployment.paymaster_owner.private_key
    done = run_command("doctor", "--json", settings=settings)
    states = [each["state"] for each in json.loads(done.stdout) if each["check"].startswith("paymaster ")]
    assert states == ["failed"] * 3


def test_operators_get_mail_when_a_paymaster_or_a_signer_has_little_left(tmp_path: Path, evm_devnet: EvmDevnet) -> None:
    poor = Account.create()
    settings = {
        "gas.least_deposit_gwei": 10**12,
        "bundler.signers": ["0x" + bytes(poor.key).hex()],
        "mail.operators": ["operator@example.com"],
    }
    with serving_gas(tmp_path, evm_devnet, settings) as gas:
        directory = tmp_path / "data" / "mail"
        # One for each paymaster, and one for the account that sends bundles.
        wait_until(lambda: len(list(directory.glob("*.eml"))) == 4, 60, "four mails")
        mails = [message_from_bytes(file.read_bytes(), policy=policy.default) for file in directory.glob("*.eml")]
        assert {mail["To"] for mail in mails} == {"operator@example.com"}
        bodies = "".join(mail.get_content() for mail in mails)
        for address in (*evm_devnet.deployment.paymasters.values(), poor.address):
            assert address in bodies
        assert gas.gateway.metric("capstan_bundler_signer_low", signer=poor.address) == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("deposit", "ethereum/devnet", "nothing"), "amount"),
        (("deposit", "ethereum/devnet", "1", "--entry-point", "0.5"), "--entry-point"),
        (("withdraw", "ethereum/devnet", "1", "--to", "me"), "--to"),
        (("deposit", "ethereum/sepolia", "1"), "ethereum/sepolia"),
    ],
)
def test_mistakes_are_named_and_nothing_is_sent(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    done = run_command("gas", "paymaster", *arguments, settings={"data_dir": str(tmp_path)})
    assert done.returncode == 1
    assert named in done.stderr
