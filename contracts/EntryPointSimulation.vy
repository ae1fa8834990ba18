# pragma version 0.4.3
"""
@title Runs an ERC-4337 operation in the place of the entry point, and finds the gas it needs.
@license Apache-2.0
@notice Never deployed. A bundler puts this code at the address of an entry point for the time of one `eth_call`, and the
        entry point's own code at `ORIGINAL`. What is asked of the entry point still reaches that code, which runs here by
        delegatecall: with the entry point's address, its storage and its caller.

        Validation is judged by the entry point itself: the bundle that is given ends with an operation whose gas values
        overflow, so handleOps always reverts, and with AA94 when the operations before it are valid. It thus leaves no
        trace, and can be asked again with another limit.
"""

# Bytes of one call, and of what it answers.
SIZE: constant(uint256) = 32768
ANSWER: constant(uint256) = 4096
# Bytes of the reason for a revert; the entry points keep as much (REVERT_REASON_MAX_LEN).
REASON: constant(uint256) = 2048
# keccak256("capstan.entry_point.code"), the last 20 bytes.
ORIGINAL: constant(address) = 0xeF28c887F9c1F304F9AC4C5B509B5cb44bD6a1bF
# The gas that is kept back for what follows a search.
RESERVE: constant(uint256) = 400_000
# A search ends when it is exact to this part of the limit.
EXACT: constant(uint256) = 24
LEAST: constant(uint256) = 1000
STEPS: constant(uint256) = 40

# What a limit is in the encoded operation, where that is not a whole word (0.7 and later).
LIMIT_BYTES: constant(uint256) = 16

DONE: constant(uint256) = 0
# The gas of the call did not suffice. What was found so far can be given to another call.
UNFINISHED: constant(uint256) = 1
VALIDATION_FAILED: constant(uint256) = 2
PREPARATION_FAILED: constant(uint256) = 3
EXECUTION_FAILED: constant(uint256) = 4
POST_FAILED: constant(uint256) = 5


struct Call:
    target: address
    data: Bytes[SIZE]


struct Answer:
    success: bool
    data: Bytes[ANSWER]


struct Search:
    # A limit that is too low, as far as known.
    low: uint256
    # A limit that suffices; 0 while none is known.
    high: uint256
    # What was used with a limit that left it all freedom.
    used: uint256


struct Task:
    # handleOps with the operation and the one that overflows.
    bundle: Bytes[SIZE]
    # Where verificationGasLimit and paymasterVerificationGasLimit stand in it; 0 where there is none.
    place: uint256
    paymaster_place: uint256
    # The limits with which the first validation is tried, lowest first.
    ladder: DynArray[uint256, 4]
    # What validation does, in the entry point's name: creating the account, validateUserOp, validatePaymasterUserOp.
    preparations: DynArray[Call, 3]
    # Whether the last of them is the paymaster's, whose context is for postOp.
    paymaster: address
    execution: Call
    # Whether a limit counts as enough only if the same gas is used: a call that fails inside may be swallowed.
    strict: bool
    # postOp of 0.7 and later takes the fee as well.
    packed: bool
    cost: uint256
    fee: uint256
    # What an earlier call found.
    verification: Search
    paymaster_verification: Search
    call: Search
    post: Search


struct Found:
    status: uint256
    verification: Search
    paymaster_verification: Search
    call: Search
    post: Search
    # What failed says about it.
    reason: Bytes[ANSWER]


@external
@payable
@raw_return
def __default__() -> Bytes[ANSWER]:
    success: bool = False
    answer: Bytes[ANSWER] = b""
    success, answer = raw_call(ORIGINAL, msg.data, max_outsize=ANSWER, is_delegate_call=True, revert_on_failure=False)
    if not success:
        raw_revert(answer)
    return answer


@external
def inspect(bundle: Bytes[SIZE], calls: DynArray[Call, 8]) -> (Bytes[ANSWER], uint256, DynArray[Answer, 8]):
    """
    @notice What handleOps reverts with, the gas it took, and what the calls answer, made one after the other by the
            entry point.
    """
    refusal: Bytes[ANSWER] = b""
    used: uint256 = 0
    used, refusal = self._handle(bundle)
    answers: DynArray[Answer, 8] = []
    for each: Call in calls:
        success: bool = False
        data: Bytes[ANSWER] = b""
        success, data = raw_call(each.target, each.data, max_outsize=ANSWER, revert_on_failure=False)
        answers.append(Answer(success=success, data=data))
    return refusal, used, answers


@external
def estimate(task: Task) -> Found:
    """
    @notice The least gas limits with which the operation passes, each exact to a part in `EXACT`.
    """
    found: Found = Found(
        status=UNFINISHED,
        verification=task.verification,
        paymaster_verification=task.paymaster_verification,
        call=task.call,
        post=task.post,
        reason=b"",
    )
    passed: bool = False
    used: uint256 = 0
    # --- validation, by the entry point itself
    if found.verification.high == 0:
        for limit: uint256 in task.ladder:
            used, found.reason = self._validate(task.bundle, task.place, limit, task.paymaster_place, limit)
            passed = self._is_valid(found.reason)
            if passed:
                found.verification = Search(low=0, high=limit, used=used)
                if task.paymaster_place != 0:
                    found.paymaster_verification = Search(low=0, high=limit, used=used)
                break
        if not passed:
            found.status = VALIDATION_FAILED
            return found
    found.reason = b""
    for step: uint256 in range(STEPS):
        if self._is_exact(found.verification):
            break
        if msg.gas < RESERVE + 2 * found.verification.used:
            return found
        limit: uint256 = self._next(found.verification)
        refusal: Bytes[ANSWER] = b""
        used, refusal = self._validate(
            task.bundle, task.place, limit, task.paymaster_place, found.paymaster_verification.high
        )
        found.verification = self._narrowed(found.verification, limit, self._is_valid(refusal))
    if task.paymaster_place != 0:
        for step: uint256 in range(STEPS):
            if self._is_exact(found.paymaster_verification):
                break
            if msg.gas < RESERVE + 2 * found.verification.used:
                return found
            limit: uint256 = self._next(found.paymaster_verification)
            refusal: Bytes[ANSWER] = b""
            used, refusal = self._validate(
                task.bundle, task.place, found.verification.high, task.paymaster_place, limit
            )
            found.paymaster_verification = self._narrowed(
                found.paymaster_verification, limit, self._is_valid(refusal)
            )
    # --- the state after validation
    context: Bytes[ANSWER] = b""
    for each: Call in task.preparations:
        success: bool = False
        data: Bytes[ANSWER] = b""
        success, data = raw_call(each.target, each.data, max_outsize=ANSWER, revert_on_failure=False)
        if not success:
            found.status = PREPARATION_FAILED
            found.reason = data
            return found
        if task.paymaster != empty(address) and each.target == task.paymaster and len(data) > 96:
            context = self._context(data)
    # --- the call of the account
    if len(task.execution.data) != 0:
        if found.call.high == 0:
            if msg.gas < RESERVE:
                return found
            limit: uint256 = msg.gas - RESERVE // 2
            success: bool = False
            success, used, found.reason = self._attempt(task.execution.target, task.execution.data, limit)
            if not success:
                found.call.used = used
                found.status = EXECUTION_FAILED
                return found
            # As much as was used is needed, in the least.
            found.call = Search(low=used, high=limit, used=used)
            found.reason = b""
        for step: uint256 in range(STEPS):
            if self._is_exact(found.call):
                break
            limit: uint256 = self._next(found.call)
            if msg.gas < RESERVE + limit + limit // 16:
                return found
            success: bool = False
            answer: Bytes[ANSWER] = b""
            success, used, answer = self._attempt(task.execution.target, task.execution.data, limit)
            enough: bool = success and (not task.strict or used == found.call.used)
            found.call = self._narrowed(found.call, limit, enough)
    # --- what the paymaster does afterwards
    if len(context) != 0:
        if len(task.execution.data) != 0:
            if msg.gas < RESERVE + found.call.high + found.call.high // 16:
                return found
            ignored: bool = raw_call(
                task.execution.target, task.execution.data, gas=found.call.high, revert_on_failure=False
            )
        post: Bytes[2 * ANSWER] = self._post(context, task.cost, task.fee, task.packed)
        if found.post.high == 0:
            if msg.gas < RESERVE:
                return found
            limit: uint256 = msg.gas - RESERVE // 2
            success: bool = False
            success, used, found.reason = self._attempt(task.paymaster, post, limit)
            if not success:
                found.status = POST_FAILED
                return found
            found.post = Search(low=used, high=limit, used=used)
            found.reason = b""
        for step: uint256 in range(STEPS):
            if self._is_exact(found.post):
                break
            limit: uint256 = self._next(found.post)
            if msg.gas < RESERVE + limit + limit // 16:
                return found
            success: bool = False
            answer: Bytes[ANSWER] = b""
            success, used, answer = self._attempt(task.paymaster, post, limit)
            found.post = self._narrowed(found.post, limit, success)
    found.status = DONE
    return found


@external
def attempt(target: address, data: Bytes[SIZE], limit: uint256):
    """
    @notice Makes a call with so much gas, and reverts with what came of it. For `estimate` alone.
    """
    success: bool = False
    answer: Bytes[REASON] = b""
    before: uint256 = msg.gas
    success, answer = raw_call(target, data, gas=limit, max_outsize=REASON, revert_on_failure=False)
    used: uint256 = before - msg.gas
    raw_revert(concat(convert(success, bytes32), convert(used, bytes32), answer))


@internal
def _attempt(target: address, data: Bytes[SIZE], limit: uint256) -> (bool, uint256, Bytes[ANSWER]):
    success: bool = False
    answer: Bytes[REASON + 64] = b""
    success, answer = raw_call(
        self,
        abi_encode(target, data, limit, method_id=method_id("attempt(address,bytes,uint256)")),
        max_outsize=REASON + 64,
        revert_on_failure=False,
    )
    if len(answer) < 64:
        # The gas ran out around the call.
        return False, limit, b""
    reason: Bytes[ANSWER] = b""
    if len(answer) > 64:
        reason = slice(answer, 64, len(answer) - 64)
    return convert(slice(answer, 31, 1), uint256) == 1, convert(slice(answer, 32, 32), uint256), reason


@internal
def _validate(
    bundle: Bytes[SIZE], place: uint256, limit: uint256, paymaster_place: uint256, paymaster_limit: uint256
) -> (uint256, Bytes[ANSWER]):
    """
    @notice handleOps with these limits in the operation.
    """
    after: uint256 = place + LIMIT_BYTES
    before: uint256 = msg.gas
    success: bool = False
    refusal: Bytes[ANSWER] = b""
    if paymaster_place == 0:
        success, refusal = raw_call(
            ORIGINAL,
            concat(slice(bundle, 0, place), self._limit(limit), slice(bundle, after, len(bundle) - after)),
            max_outsize=ANSWER,
            is_delegate_call=True,
            revert_on_failure=False,
        )
    else:
        rest: uint256 = paymaster_place + LIMIT_BYTES
        success, refusal = raw_call(
            ORIGINAL,
            concat(
                slice(bundle, 0, place),
                self._limit(limit),
                slice(bundle, after, paymaster_place - after),
                self._limit(paymaster_limit),
                slice(bundle, rest, len(bundle) - rest),
            ),
            max_outsize=ANSWER,
            is_delegate_call=True,
            revert_on_failure=False,
        )
    return before - msg.gas, refusal


@internal
def _handle(bundle: Bytes[SIZE]) -> (uint256, Bytes[ANSWER]):
    success: bool = False
    refusal: Bytes[ANSWER] = b""
    before: uint256 = msg.gas
    success, refusal = raw_call(ORIGINAL, bundle, max_outsize=ANSWER, is_delegate_call=True, revert_on_failure=False)
    return before - msg.gas, refusal


@internal
@pure
def _limit(limit: uint256) -> bytes16:
    return convert(convert(limit, uint128), bytes16)


@internal
@pure
def _is_valid(refusal: Bytes[ANSWER]) -> bool:
    """
    @notice Whether handleOps got as far as what follows validation: to the last operation (AA94), or to the signatures and
            times of the operation that is asked about. A signature may be a dummy here.
    """
    code: bytes4 = empty(bytes4)
    if len(refusal) >= 104 and slice(refusal, 0, 4) == method_id("FailedOp(uint256,string)", output_type=Bytes[4]):
        code = convert(slice(refusal, 100, 4), bytes4)
    elif len(refusal) >= 72 and slice(refusal, 0, 4) == method_id("Error(string)", output_type=Bytes[4]):
        code = convert(slice(refusal, 68, 4), bytes4)
    # AA94, AA24, AA22, AA34, AA32
    return code in [0x41413934, 0x41413234, 0x41413232, 0x41413334, 0x41413332]


@internal
@pure
def _is_exact(search: Search) -> bool:
    return search.high - search.low <= max(search.high // EXACT, LEAST)


@internal
@pure
def _next(search: Search) -> uint256:
    """
    @notice The limit to try next. First what was used, with the 64th parts that calls keep from those they make (EIP-150):
            of two, which an account behind a proxy has.
    """
    guess: uint256 = search.used + search.used // EXACT + LEAST // 2
    if search.low < guess and guess < search.high:
        return guess
    # Far below a limit that suffices for anything: the need is near to what failed.
    if search.high > 4 * search.low and search.low != 0:
        return search.low * 2
    return (search.low + search.high) // 2


@internal
@pure
def _narrowed(search: Search, limit: uint256, enough: bool) -> Search:
    if enough:
        return Search(low=search.low, high=limit, used=search.used)
    return Search(low=limit, high=search.high, used=search.used)


@internal
@pure
def _context(data: Bytes[ANSWER]) -> Bytes[ANSWER]:
    """
    @notice The context of what validatePaymasterUserOp returned; it stands behind two words and its length.
    """
    length: uint256 = convert(slice(data, 64, 32), uint256)
    if length == 0 or length > len(data) - 96:
        return b""
    return slice(data, 96, length)


@internal
@pure
def _post(context: Bytes[ANSWER], cost: uint256, fee: uint256, packed: bool) -> Bytes[2 * ANSWER]:
    # The mode is opSucceeded, 0.
    if packed:
        return abi_encode(empty(uint256), context, cost, fee, method_id=method_id("postOp(uint8,bytes,uint256,uint256)"))
    return abi_encode(empty(uint256), context, cost, method_id=method_id("postOp(uint8,bytes,uint256)"))
