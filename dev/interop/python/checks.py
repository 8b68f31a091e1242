"""Runs asynchronous checks, and prints `ok NAME` or `FAIL NAME: why` for each."""

import asyncio

LIMIT_SECONDS = 30


async def check_all(checks):
    """Runs functions by their names, one after the other. Returns the exit status of the program."""
    failed = 0
    for name, check in checks:
        try:
            await asyncio.wait_for(check(), LIMIT_SECONDS)
            print(f"ok {name}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL {name}: {error!r}".replace("\n", " "), flush=True)
    return 1 if failed else 0
