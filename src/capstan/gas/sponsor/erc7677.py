"""ERC-7677 over the same engine: `pm_getPaymasterStubData` and `pm_getPaymasterData`.

Called by the endpoint of the bundler, which is also the paymaster's address for wallets. Stub data is for estimation:
it is as long as the real data, costs as much, and reserves nothing. The policy's id is in the context.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from capstan.access.models import Caller
from capstan.core.errors import InvalidRequest
from capstan.core.hexes import parse_quantity, to_checksum_address, to_data, to_quantity
from capstan.gas.sponsor.service import Case, SponsorService

_POLICY_NAMES = ("policyId", "policy_id")
_PARAMETERS = ("the operation", "the entry point", "the chain id", "the context")


class SponsorName(msgspec.Struct, frozen=True):
    """Who pays, as wallets show it. Empty texts are not told."""

    name: str = ""
    icon: str = ""


class PaymasterWebService:
    """The two methods of ERC-7677."""

    def __init__(self, service: SponsorService, sponsor: SponsorName) -> None:
        self._service = service
        self._sponsor = sponsor

    async def stub(self, caller: Caller, network: str, params: Sequence[Any]) -> dict[str, Any]:
        """`pm_getPaymasterStubData` on the network `chain/network`. Raises the errors of the API."""
        case = await self._case(caller, network, params, fees=False)
        self._service.require_signer()
        answer: dict[str, Any] = {**_fields(case), "isFinal": False}
        if self._sponsor.name:
            icon = {"icon": self._sponsor.icon} if self._sponsor.icon else {}
            answer["sponsor"] = {"name": self._sponsor.name, **icon}
        return answer

    async def data(self, caller: Caller, network: str, params: Sequence[Any]) -> dict[str, Any]:
        """`pm_getPaymasterData`. Raises the errors of the API."""
        case = await self._case(caller, network, params)
        sponsored = await self._service.sponsor(case)
        if case.subject.version == "0.6":
            return {"paymasterAndData": sponsored.paymaster_and_data}
        return {
            "paymaster": sponsored.paymaster,
            "paymasterData": sponsored.paymaster_data,
            "paymasterVerificationGasLimit": sponsored.paymaster_verification_gas_limit,
            "paymasterPostOpGasLimit": sponsored.paymaster_post_op_gas_limit,
        }

    async def _case(self, caller: Caller, network: str, params: Sequence[Any], *, fees: bool = True) -> Case:
        for place, name in enumerate(_PARAMETERS):
            if len(params) <= place or params[place] is None:
                raise InvalidRequest(f"{name} is missing: it is parameter {place + 1}")
        operation, entry_point, chain_id, context = params[:4]
        if not isinstance(operation, Mapping) or not isinstance(context, Mapping):
            raise InvalidRequest("the operation and the context must be objects")
        if not fees:
            # Wallets may ask for a stub before they know what to offer.
            operation = {"maxFeePerGas": "0x0", "maxPriorityFeePerGas": "0x0", **_present(operation)}
        policy_id = next((context[name] for name in _POLICY_NAMES if isinstance(context.get(name), str)), None)
        if policy_id is None:
            raise InvalidRequest("the context must name the policy as policyId")
        chain, _, name = network.partition("/")
        case = await self._service.open_case(
            caller, policy_id, operation, chain=chain, network=name, entry_point=entry_point
        )
        _check_chain(case, chain_id)
        return case


def _present(operation: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in operation.items() if value is not None}


def _check_chain(case: Case, chain_id: Any) -> None:
    try:
        number = parse_quantity(chain_id, lenient=True)
    except ValueError as error:
        raise InvalidRequest(f"the chain id: {error}") from None
    if number != case.facts.chain_id:
        raise InvalidRequest(f"the chain id is {number}, but {case.facts.name} has {case.facts.chain_id}")


def _fields(case: Case) -> dict[str, Any]:
    """Stub data in the shape of the version."""
    operation, paymaster = case.subject.operation, case.subject.paymaster
    if case.subject.version == "0.6":
        return {"paymasterAndData": to_data(paymaster + operation.paymaster_data)}
    return {
        "paymaster": to_checksum_address(paymaster),
        "paymasterData": to_data(operation.paymaster_data),
        "paymasterVerificationGasLimit": to_quantity(operation.paymaster_verification_gas_limit),
        "paymasterPostOpGasLimit": to_quantity(operation.paymaster_post_op_gas_limit),
    }
