"""Entry points into the Autobahn|Testsuite, for CPython 2.7. Used by `cargo xtask conformance`.

suite.py list PATTERN...               the ids of the matching cases, one a line, in the suite's order
suite.py client SPEC [--count N]       the suite as a client, as SPEC (a JSON file) says
suite.py server SPEC [--count N]       the suite as a server, until it is ended

The stock suite sends 1,000 messages in each compression case (sections 12 and 13). `--count`
changes that number: the decisions under test are made in the handshake and the first few messages,
the other hundreds only repeat them.

The stock suite drops a peer that has not closed the connection, or has not answered a Close, after 0.5 to 1 s. On a busy machine a
peer is late without a fault, so these limits are longer: a peer that answers at once is judged as before. Nothing else of the
suite is touched.
"""
import sys

from autobahn.websocket.protocol import WebSocketClientFactory, WebSocketServerFactory
from autobahntestsuite import wstest
from autobahntestsuite.case import CaseBasename, CaseCategories, Cases, CaseSetname, CaseSubCategories
from autobahntestsuite.caseset import CaseSet
from autobahntestsuite.fuzzing import FuzzingProtocol

# Seconds: longer than a machine stalls.
LIMIT = 60


def list_cases(patterns):
    cases = CaseSet(CaseSetname, CaseBasename, Cases, CaseCategories, CaseSubCategories)
    for case in cases.parseSpecCases({"cases": patterns}):
        # A full id is passed through by the suite whether it exists or not.
        if case in cases.CasesById:
            print(case)
        else:
            sys.exit("no such case: " + case)


def give_time():
    """Replaces the limits on the time of a peer."""
    kill_after, continue_later = FuzzingProtocol.killAfter.__func__, FuzzingProtocol.continueLater.__func__

    def continue_later_or_end(protocol, delay, function, tag=None):
        # The peer has to end the connection before this part is sent.
        is_end = tag == "B" and protocol.runCase.__class__.__name__.startswith("Case6_4_")
        continue_later(protocol, LIMIT if is_end else delay, function, tag)

    FuzzingProtocol.killAfter = lambda protocol, delay: kill_after(protocol, max(delay, LIMIT))
    FuzzingProtocol.continueLater = continue_later_or_end
    for factory in (WebSocketClientFactory, WebSocketServerFactory):
        factory.resetProtocolOptions = with_limits(factory.resetProtocolOptions.__func__)


def with_limits(reset):
    def reset_with_limits(factory):
        reset(factory)
        factory.openHandshakeTimeout = factory.closeHandshakeTimeout = factory.serverConnectionDropTimeout = LIMIT

    return reset_with_limits


def run(role, spec, count):
    give_time()
    if count is not None:
        for case in Cases:
            if case.__name__.startswith(("Case12_", "Case13_")):
                case.COUNT = count
    # 0: no page beside the WebSocket server.
    sys.argv = ["wstest", "--mode", "fuzzing" + role, "--spec", spec, "--webport", "0"]
    wstest.run()


def main(args):
    if len(args) >= 2 and args[0] == "list":
        list_cases(args[1:])
    elif len(args) == 2 and args[0] in ("client", "server"):
        run(args[0], args[1], None)
    elif len(args) == 4 and args[0] in ("client", "server") and args[2] == "--count":
        run(args[0], args[1], int(args[3]))
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
