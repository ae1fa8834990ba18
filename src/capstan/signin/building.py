"""Builds the sign-in service from the settings, for the dashboard and for the command line. It decides nothing."""

from datetime import timedelta

from capstan.core.clock import Clock
from capstan.settings import Settings
from capstan.signin.models import Secrets
from capstan.signin.service import Lifetimes, SignIn
from capstan.signin.store import SignInStore
from capstan.storage.database import Database


def build_sign_in(settings: Settings, database: Database, clock: Clock, sealed: Secrets, *, origin: str) -> SignIn:
    """The service that signs people in; `origin` is the address of this server as browsers know it."""
    chosen = settings.dashboard
    lifetimes = Lifetimes(timedelta(hours=chosen.idle_hours), timedelta(days=chosen.session_days))
    return SignIn(SignInStore(database), clock, sealed, lifetimes=lifetimes, dashboard_url=f"{origin}/dashboard")
