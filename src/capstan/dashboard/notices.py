"""What a page says after something was done. The address names the notice, so nobody else's words can be shown."""

from collections.abc import Mapping

NOTICES: Mapping[str, str] = {
    "signed-out": "You are signed out.",
    "password": "The password is changed. Everywhere else you are signed out.",
    "reset": "The password is changed. Sign in with it.",
    "reset-asked": "If this address can sign in, a mail with a link is on its way.",
    "session-ended": "The session has ended.",
    "sessions-ended": "All other sessions have ended.",
    "totp-on": "From now on a code is asked for when you sign in.",
    "totp-off": "No code is asked for any more.",
    "invited": "The invitation is on its way.",
    "key-revoked": "The key is revoked. It is refused everywhere within a second.",
    "webhook-changed": "The webhook is changed.",
    "webhook-paused": "The webhook is paused. Its events are kept for seven days.",
    "webhook-resumed": "The webhook is active. What was kept is being delivered.",
    "webhook-deleted": "The webhook is deleted.",
    "webhook-disabled": "The webhook is disabled.",
    "replayed": "The event is being delivered again.",
    "policy-created": "The policy is active.",
    "policy-changed": "The policy is changed. It holds from the next operation on.",
    "policy-pause": "The policy is paused. It sponsors nothing.",
    "policy-resume": "The policy is active.",
    "policy-archive": "The policy is archived.",
    "account-created": "The account is made. Invite somebody to it, or make a key with the command line.",
    "account-changed": "The account is changed.",
    "suspended": "The account is suspended. Its keys are refused within a second.",
    "resumed": "The account is active again.",
}
