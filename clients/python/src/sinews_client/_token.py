"""The token of a client: where it comes from, and how long it is used."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import time
from typing import Any, Awaitable, Callable, Optional, Union

TokenSource = Union[str, None, Callable[[], Union[Optional[str], Awaitable[Optional[str]]]]]

#: A token is replaced when this share of its lifetime is left: for a new connection, or on the present one at most
#: ``RENEWAL_MAX`` seconds before it expires.
RENEWAL_SHARE = 0.2
RENEWAL_MAX = 60.0
#: Seconds between renewal attempts; less if the token expires soon.
RENEWAL_RETRY = 5.0
RENEWAL_RETRY_MIN = 0.25


class TokenStore:
    """The present token. A function of the application is asked for another one only if that is needed."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self.token: Optional[str] = None
        #: The token that the server has rejected last.
        self.rejected: Optional[str] = None
        #: The time until which the token is used, and at which it expires, by the clock of the loop.
        self._fresh_until = 0.0
        self.expires_at = 0.0

    @property
    def is_renewable(self) -> bool:
        return callable(self._source)

    async def current(self) -> Optional[str]:
        """The token for a new connection."""
        now = asyncio.get_running_loop().time()
        if not self.is_renewable or self.token is None or self.token == self.rejected or now >= self._fresh_until:
            self.use(await self.fetch())
        return self.token

    async def fetch(self) -> Optional[str]:
        """Asks the application for a token."""
        if not callable(self._source):
            return self._source
        token: Any = self._source()
        if inspect.isawaitable(token):
            token = await token
        if token is not None and not isinstance(token, str):
            raise TypeError(f"the token is of the type {type(token).__name__}, and not a string")
        return token or None

    def use(self, token: Optional[str], lifetime: Optional[float] = None) -> None:
        """Uses a token, for a lifetime that the server has named, or that the token itself has."""
        if lifetime is None:
            lifetime = lifetime_of(token)
        self.token = token
        now = asyncio.get_running_loop().time()
        self.expires_at = now + lifetime
        self._fresh_until = now + lifetime * (1 - RENEWAL_SHARE)


def lifetime_of(token: Optional[str]) -> float:
    """Seconds until a token expires, 0 if it does not say."""
    try:
        claims = (token or "").split(".")[1]
        exp = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]
        return max(0.0, float(exp) - time.time())
    except (ValueError, LookupError, TypeError):
        return 0.0
