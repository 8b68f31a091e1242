"""Each test runs on asyncio and, if it is installed, on uvloop."""

import asyncio
import functools
import inspect

import pytest

LOOPS = ["asyncio"]
try:
    import uvloop

    LOOPS.append("uvloop")
except ImportError:
    uvloop = None

#: Seconds for one test without a ``timeout`` of its own.
TIMEOUT = 10


def pytest_generate_tests(metafunc):
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("loop_name")
        metafunc.parametrize("loop_name", LOOPS)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def main():
        await asyncio.wait_for(functools.partial(pyfuncitem.obj, **arguments)(), getattr(pyfuncitem.obj, "timeout", TIMEOUT))

    factory = uvloop.new_event_loop if pyfuncitem.callspec.params["loop_name"] == "uvloop" else asyncio.new_event_loop
    loop = factory()
    REPORTED[:] = []
    loop.set_exception_handler(lambda _, context: REPORTED.append(context))
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    allowed = getattr(pyfuncitem.obj, "reports", False)
    assert allowed or not REPORTED, REPORTED
    return True


#: What the loop's exception handler has received in this test.
REPORTED = []


def reports(function):
    """Marks a test that expects exceptions in the loop's handler."""
    function.reports = True
    return function


@pytest.fixture
def reported():
    return REPORTED
