"""The node's own tracer and our EVM say the same of every operation, on geth."""

from collections.abc import Iterator

import msgspec
import pytest

from capstan.bundler.refusals import RULE_VIOLATION
from capstan.bundler.validating import Validated
from capstan.bundler.validation.choosing import Backend
from capstan.bundler.validation.workers import Workers
from capstan.devnet.artifacts import load_package_contract
from capstan.devnet.install import NodeProject
from tests.support.geth import CHAIN_ID, RICH, running_geth
from tests.support.validation import Deployer, validation_of, verdict
from tests.validation.cases import CASES, HELPERS, Case
from tests.validation.programs import random_cases, random_helpers
from tools.geth import BINARY

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason="geth is not built; `make geth` does that, with Go")


@pytest.fixture(scope="module")
def deployer(node_project: NodeProject) -> Iterator[Deployer]:
    with running_geth() as geth:
        code = load_package_contract(node_project, "aa07", "EntryPoint").init_code()
        receipt = geth.send(RICH, None, data=code)
        assert receipt["status"] == "0x1"
        yield Deployer(geth, "0.7", RICH, receipt["contractAddress"], {**HELPERS, **random_helpers()})


def _shown(found: tuple[int, str] | Validated) -> dict[str, object]:
    """Field by field, so that a difference can be read."""
    return {"refusal": found} if isinstance(found, tuple) else msgspec.structs.asdict(found)


async def _both(deployer: Deployer, workers: Workers, case: Case) -> list[tuple[int, str] | Validated]:
    """What the node's tracer and our EVM say of one operation."""
    operation = deployer.operation(case)
    entry_point, url = bytes.fromhex(deployer.entry_point[2:]), deployer.chain.url
    found = []
    backends: tuple[Backend, ...] = ("native", "local")
    for backend in backends:
        async with validation_of(url, CHAIN_ID, workers, backend) as validation:
            found.append(await verdict(validation.validator("0.7", entry_point), operation))
    return found


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_both_tracers_agree_on_every_rule(deployer: Deployer, workers: Workers, case: Case) -> None:
    native, local = await _both(deployer, workers, case)
    assert _shown(native) == _shown(local)
    if case.refused is None:
        assert isinstance(native, Validated), native
    else:
        assert not isinstance(native, Validated), "it was accepted"
        assert (native[0], native[1].startswith(case.refused)) == (RULE_VIOLATION, True), native


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", random_cases(45), ids=lambda case: case.name)
async def test_both_tracers_agree_on_programs_by_chance(deployer: Deployer, workers: Workers, case: Case) -> None:
    native, local = await _both(deployer, workers, case)
    assert _shown(native) == _shown(local)
