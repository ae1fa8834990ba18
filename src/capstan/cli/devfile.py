"""The files of development mode: `dev.json`, which tools and tests read, and the secrets kept between runs.

Called by `capstan dev`. The shape of `dev.json` is an interface: fields are added, never removed or renamed. Both files
hold keys in plain text, so only their owner may read them; nothing of this exists outside development mode.
"""

import os
import secrets as random_secrets
from pathlib import Path
from typing import Any

import msgspec

from capstan.access.secrets import well_formed
from capstan.devnet.models import Deployment

DEV_FILE = "dev.json"

_SECRETS_FILE = "dev-secrets.json"
_DATABASE_FILE = "capstan.db"
_EMAIL = "dev@capstan.local"


class DevSecrets(msgspec.Struct, frozen=True):
    """What development mode remembers. `account_id` is empty until the account is made."""

    account_id: str
    api_key: str
    live_key: str
    operator_token: str
    email: str
    password: str

    def save(self, data_dir: Path) -> None:
        """Keep them for the next run."""
        write_private(data_dir / _SECRETS_FILE, self)


def load_secrets(data_dir: Path) -> DevSecrets:
    """The secrets of the last run, or fresh ones when there is none, its database is gone, or they are damaged."""
    path = data_dir / _SECRETS_FILE
    if path.exists() and (data_dir / _DATABASE_FILE).exists():
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=DevSecrets)
        except msgspec.DecodeError:
            kept = None
        if kept is not None and well_formed(kept.api_key) and well_formed(kept.live_key):
            return kept
    return DevSecrets(
        account_id="",
        api_key="",
        live_key="",
        operator_token=random_secrets.token_urlsafe(24),
        email=_EMAIL,
        password=random_secrets.token_urlsafe(12),
    )


def network_overrides(deployment: Deployment, evm_url: str, solana_urls: tuple[str, str]) -> dict[str, object]:
    """The settings of the two development networks. Solana has an address for calls and one for subscriptions."""
    native = next(feed.address for feed in deployment.price_feeds if feed.token is None)
    evm = {
        "upstreams": [{"url": evm_url, "name": "devnet"}],
        "entry_points": deployment.entry_points,
        "factories": deployment.factories,
        "paymasters": deployment.paymasters,
        "multicall3": deployment.multicall3,
        "native_usd_feed": native,
        "price_feeds": {feed.token: feed.address for feed in deployment.price_feeds if feed.token is not None},
        "extra_namespaces": ["debug"],
        "block_time_ms": 1000,
        "debug_bundler": True,
    }
    names = ("litesvm", "litesvm-websocket")
    upstreams = [{"url": url, "name": name} for url, name in zip(solana_urls, names, strict=True)]
    solana = {"upstreams": upstreams, "genesis_hash": ""}
    return {
        "bundler.signers": [account.private_key for account in deployment.bundler_executors],
        "gas.signer": deployment.paymaster_signer.private_key,
        "gas.owner": deployment.paymaster_owner.private_key,
        **{f"networks.ethereum/devnet.{key}": value for key, value in evm.items()},
        **{f"networks.solana/devnet.{key}": value for key, value in solana.items()},
    }


def dev_document(
    base_url: str, secrets: DevSecrets, deployment: Deployment, evm_url: str, solana_url: str
) -> dict[str, Any]:
    """The content of `dev.json`."""
    origin = base_url.removesuffix("/v1")
    chain = msgspec.to_builtins(deployment)
    return {
        "base_url": base_url,
        "ws_url": origin.replace("http", "ws", 1),
        "dashboard_url": f"{origin}/dashboard",
        "dashboard": {"email": secrets.email, "password": secrets.password},
        "api_key": secrets.api_key,
        "live_key": secrets.live_key,
        "operator_token": secrets.operator_token,
        "account": secrets.account_id,
        "chain": "ethereum",
        "network": "devnet",
        "chain_id": deployment.chain_id,
        "node_url": evm_url,
        "accounts": chain["accounts"],
        "entry_points": chain["entry_points"],
        "factories": chain["factories"],
        "paymasters": chain["paymasters"],
        "tokens": chain["tokens"],
        "nfts": chain["nfts"],
        "multicall3": chain["multicall3"],
        "price_feeds": chain["price_feeds"],
        "solana": {"chain": "solana", "network": "devnet", "node_url": solana_url},
    }


def write_private(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the whole new one, and only the owner can read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
