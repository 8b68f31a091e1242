"""The signature of the server's hooks, for any framework."""

import hashlib
import hmac
import os
import re
import time

HOOK_KEY = os.environ["SINEWS_HOOKS_SIGNING_KEY"].encode()


def is_from_server(signature, body):
    """Checks the signature of a hook, and that the request is not an old one."""
    match = re.fullmatch(r"t=(\d{1,12}),v1=([0-9a-f]{64})", signature)
    if not match or abs(time.time() - int(match[1])) > 300:
        return False
    expected = hmac.new(HOOK_KEY, match[1].encode() + b"." + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, match[2])
