"""What signing in must do on both databases: sessions that end, links that work once, tries that are counted."""

from datetime import timedelta

import pytest
from argon2 import PasswordHasher
from sqlalchemy import select

from capstan.access.models import Account
from capstan.access.plans import PlanBook
from capstan.access.service import AccessService
from capstan.access.store import AccessStore
from capstan.core.clock import ManualClock, utc
from capstan.core.errors import Conflict, InvalidRequest, NotFound, RateLimited
from capstan.settings import LiveSettings
from capstan.signin.models import User, Visit
from capstan.signin.passwords import Passwords
from capstan.signin.service import CodeNeeded, Lifetimes, Refused, SignIn
from capstan.signin.store import SignInStore
from capstan.signin.totp import code_at, new_totp_secret
from capstan.storage.database import Database
from capstan.storage.signin_schema import user_links, user_sessions, user_totp
from capstan.storage.webhook_schema import mails
from capstan.webhooks.sealing import Seal

EMAIL, PASSWORD = "ann@example.com", "a password of Ann's"
# The cost of real passwords would be most of what these tests take.
_CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HOME, ELSEWHERE = Visit("192.0.2.1", "Firefox"), Visit("192.0.2.2", "Safari")


class World:
    """A service with one person in it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = ManualClock()
        lifetimes = Lifetimes(idle=timedelta(hours=12), longest=timedelta(days=14))
        self.people = SignIn(
            SignInStore(database),
            self.clock,
            Seal(b"k" * 32),
            lifetimes=lifetimes,
            dashboard_url="https://x/dashboard",
            passwords=Passwords(_CHEAP),
        )
        plans = PlanBook(LiveSettings(None, {}, {}).current.plans.get)
        self.access = AccessService(AccessStore(database), self.clock, key_limit=plans.key_limit)
        self.account: Account

    async def open(self) -> None:
        self.account = await self.access.create_account("one", "free")
        await AccessStore(self.database).add_user(
            user_id="usr_ann",
            account_id=self.account.id,
            email=EMAIL,
            password_hash=_CHEAP.hash(PASSWORD),
            role="member",
            at=utc(self.clock),
        )

    async def sign_in(self, code: str = "", visit: Visit = HOME, password: str = PASSWORD) -> str:
        return (await self.people.sign_in(EMAIL, password, code, visit))[0]

    async def user(self) -> User:
        (found,) = await self.people.people(self.account.id)
        return found


@pytest.fixture
async def world(database: Database) -> World:
    made = World(database)
    await made.open()
    return made


async def test_a_session_is_found_by_its_token_which_is_stored_nowhere(world: World) -> None:
    token = await world.sign_in()
    found = await world.people.find(token)
    assert found is not None
    assert (found.user.email, found.account.id, found.session.client) == (EMAIL, world.account.id, HOME.client)
    assert await world.people.find(token + "x") is None
    async with world.database.read() as connection:
        rows = (await connection.execute(select(user_sessions))).mappings().all()
    assert token not in str([dict(row) for row in rows])


async def test_a_session_ends_unused_at_its_end_and_when_its_browser_signs_in_again(world: World) -> None:
    unused = await world.sign_in()
    world.clock.advance(12 * 3600)
    assert await world.people.find(unused) is None
    used = await world.sign_in()
    for _ in range(30):
        world.clock.advance(11 * 3600)
        assert await world.people.find(used) is not None
    world.clock.advance(6 * 3600)
    assert await world.people.find(used) is None
    assert await world.people.sessions((await world.user()).id) == []

    before = await world.sign_in()
    after, _ = await world.people.sign_in(EMAIL, PASSWORD, "", HOME, present=before)
    assert after != before
    assert await world.people.find(before) is None
    assert await world.people.find(after) is not None


async def test_sessions_are_listed_and_ended_one_by_one_all_but_this_one_or_with_a_new_password(world: World) -> None:
    tokens = [await world.sign_in(visit=visit) for visit in (HOME, ELSEWHERE, HOME)]
    mine = await world.people.find(tokens[0])
    other = await world.people.find(tokens[1])
    assert mine is not None
    assert other is not None
    assert len(await world.people.sessions(mine.user.id)) == 3
    await world.people.end_session(mine.user.id, other.session.id)
    assert await world.people.find(tokens[1]) is None
    with pytest.raises(NotFound):
        await world.people.end_session("usr_somebody_else", mine.session.id)
    assert await world.people.end_other_sessions(mine) == 1
    assert [await world.people.find(token) is not None for token in tokens] == [True, False, False]
    here, there = await world.sign_in(), await world.sign_in(visit=ELSEWHERE)
    found = await world.people.find(here)
    assert found is not None
    with pytest.raises(Refused):
        await world.people.change_password(found, "wrong", "a new password")
    await world.people.change_password(found, PASSWORD, "a new password")
    assert await world.people.find(here) is not None
    assert await world.people.find(there) is None


async def test_five_wrong_passwords_from_one_address_are_enough_and_others_are_let_in(world: World) -> None:
    for _ in range(5):
        with pytest.raises(Refused):
            await world.sign_in(password="wrong")
    with pytest.raises(RateLimited):
        await world.sign_in()
    assert await world.sign_in(visit=ELSEWHERE)
    world.clock.advance(901)
    assert await world.sign_in()

    with pytest.raises(Refused) as wrong:
        await world.sign_in(password="wrong")
    with pytest.raises(Refused) as unknown:
        await world.people.sign_in("nobody@example.com", PASSWORD, "", HOME)
    assert str(wrong.value) == str(unknown.value)


async def test_a_second_factor_is_asked_for_once_it_is_on_and_no_code_counts_twice(world: World) -> None:
    user, secret = await world.user(), new_totp_secret()
    step = int(world.clock.now()) // 30
    with pytest.raises(Refused):
        await world.people.enable_totp(user, secret, "000000")
    assert await world.sign_in()
    await world.people.enable_totp(user, secret, code_at(secret, step))
    with pytest.raises(CodeNeeded):
        await world.sign_in()
    with pytest.raises(Refused):
        await world.sign_in(code=code_at(secret, step))
    world.clock.advance(30)
    assert await world.sign_in(code=code_at(secret, step + 1))
    with pytest.raises(Refused):
        await world.sign_in(code=code_at(secret, step + 1))
    async with world.database.read() as connection:
        sealed = await connection.scalar(select(user_totp.c.secret))
    assert secret.encode() not in bytes(sealed or b"")
    assert await world.people.forget_totp(EMAIL)
    assert await world.sign_in()


async def test_a_forgotten_password_is_replaced_with_a_link_that_works_once_and_ends_every_session(
    world: World,
) -> None:
    token = await world.sign_in()
    await world.people.ask_for_reset("nobody@example.com", HOME)
    await world.people.ask_for_reset(" Ann@Example.com ", HOME)
    async with world.database.read() as connection:
        (mail,) = (await connection.execute(select(mails))).all()
        kept = (await connection.execute(select(user_links))).all()
    assert mail.recipient == EMAIL
    link = mail.body.partition("token=")[2].split()[0]
    assert link not in str(kept)
    with pytest.raises(InvalidRequest, match="10 to 200"):
        await world.people.reset(link, "short")
    await world.people.reset(link, "a new password")
    with pytest.raises(NotFound):
        await world.people.reset(link, "another password")
    assert await world.people.find(token) is None
    with pytest.raises(Refused):
        await world.sign_in()
    assert await world.sign_in(password="a new password")


async def test_an_invitation_makes_a_member_of_that_account_once_until_it_expires(world: World) -> None:
    link = (await world.people.invite(world.account, "bob@example.com", "member")).partition("token=")[2]
    with pytest.raises(NotFound):
        await world.people.reset(link, "a new password")
    world.clock.advance(7 * 86_400)
    with pytest.raises(NotFound):
        await world.people.accept(link, "a new password", HOME)

    link = (await world.people.invite(world.account, "Bob@example.com", "member")).partition("token=")[2]
    token = await world.people.accept(link, "the password of Bob", HOME)
    found = await world.people.find(token)
    assert found is not None
    assert (found.user.email, found.user.role, found.account.id) == ("bob@example.com", "member", world.account.id)
    with pytest.raises(NotFound):
        await world.people.accept(link, "the password of Bob", HOME)
    with pytest.raises(Conflict):
        await world.people.invite(world.account, "bob@example.com", "member")


async def test_the_first_operator_is_made_once_and_not_after_anybody_can_sign_in(database: Database) -> None:
    world = World(database)
    assert await world.people.nobody_yet()
    first, second = [(await world.people.offer_setup()).partition("token=")[2] for _ in range(2)]
    token = await world.people.accept(first, "a good password", HOME, email="op@example.com", name="Harbour")
    found = await world.people.find(token)
    assert found is not None
    assert (found.user.role, found.account.name, found.account.plan) == ("operator", "Harbour", "enterprise")
    with pytest.raises(Conflict):
        await world.people.accept(second, "a good password", HOME, email="other@example.com", name="Other")
