"""Cases of the suite of websockets that fail, with their reasons."""

INTERNAL = "reads or replaces parts of classes inside websockets, which do not exist here"
KEEPALIVE = "calls `start_keepalive`, which is inside websockets; the tests of clients and servers cover the options"
LAST_PIECE = "expects an empty frame behind the last piece; here the last piece ends the message"
STREAMING = "`recv_streaming` yields a fragmented message as one piece"
BLOCKED = "expects that a message enters the buffer of a transport that has paused the connection; here it waits in the connection"
TEXT = "expects another text of the exception"
EXTENSIONS = "reads `protocol.extensions`: there are no objects for extensions"
PROXY = "proxies are not supported"
LOGS = "expects a record of level DEBUG for a connection without a request; here there is none"

#: Of `ClientConnectionTests` and `ServerConnectionTests`.
_BOTH = {
    "test_backpressure": INTERNAL,
    "test_broadcast_reports_connection_failing_to_send": INTERNAL,
    "test_broadcast_reports_connection_with_send_blocked": BLOCKED,
    "test_broadcast_skips_connection_failing_to_send": INTERNAL,
    "test_broadcast_skips_connection_with_send_blocked": BLOCKED,
    "test_close_during_send": "expects that the connection is dropped; here it is closed with a handshake, so that the peer's Close is known",
    "test_close_timeout": INTERNAL,
    "test_local_address": INTERNAL,
    "test_max_queue": INTERNAL,
    "test_max_queue_none": INTERNAL,
    "test_max_queue_tuple": INTERNAL,
    "test_ping": "replaces `random.getrandbits`; here pings take their payloads from the system",
    "test_recv_streaming_cancellation_before_receiving": STREAMING,
    "test_recv_streaming_cancellation_while_receiving": STREAMING,
    "test_recv_streaming_during_recv": TEXT,
    "test_recv_streaming_during_recv_streaming": TEXT,
    "test_recv_streaming_fragmented_binary": STREAMING,
    "test_recv_streaming_fragmented_text": STREAMING,
    "test_remote_address": INTERNAL,
    "test_send_during_send": LAST_PIECE,
    "test_send_while_send_async_blocked": BLOCKED,
    "test_send_while_send_blocked": BLOCKED,
    "test_unexpected_failure_in_data_received": INTERNAL,
    "test_unexpected_failure_in_send_context": INTERNAL,
    "test_write_limit": INTERNAL,
    "test_write_limits": INTERNAL,
    "test_writing_in_send_context_fails": INTERNAL,
}
for _kind in ("", "_async"):
    for _name in ("binary", "binary_from_str", "text", "text_from_bytes"):
        _BOTH[f"test_send{_kind}_fragmented_{_name}"] = LAST_PIECE
for _name in ("ignores_timeout", "reports_errors", "terminates_while_sleeping", "terminates_while_waiting_for_pong", "times_out"):
    _BOTH[f"test_keepalive_{_name}"] = KEEPALIVE
for _name in ("test_keepalive", "test_disable_keepalive"):
    _BOTH[_name] = KEEPALIVE

KNOWN = {
    "ClientConnectionTests.test_close_timeout_waiting_for_connection_closed": "expects a `TimeoutError` as the cause; here a finished "
    "closing handshake has no cause, although the peer has left its transport open",
    "ClientTests.test_compression_is_enabled": EXTENSIONS,
    "ClientTests.test_connection_closed_during_handshake": TEXT,
    "ClientTests.test_disable_compression": EXTENSIONS,
    "ClientTests.test_handshake_fails": TEXT,
    "ClientTests.test_junk_handshake_response": "expects `ValueError` as the cause; here a response is read once its head is complete",
    "ClientUsageErrorsTests.test_https_proxy_without_ssl": PROXY,
    "ClientUsageErrorsTests.test_invalid_subprotocol": TEXT,
    "ClientUsageErrorsTests.test_proxy_ssl_without_https_proxy": PROXY,
    "ClientUsageErrorsTests.test_unsupported_compression": TEXT,
    "ClientUsageErrorsTests.test_unsupported_proxy": PROXY,
    "BasicAuthTests.test_bad_credentials": TEXT,
    "BasicAuthTests.test_bad_list_of_credentials": TEXT,
    "ServerTests.test_compression_is_enabled": EXTENSIONS,
    "ServerTests.test_connection_closed_before_handshake_request": LOGS,
    "ServerTests.test_disable_compression": EXTENSIONS,
    "ServerTests.test_junk_handshake_request": LOGS,
    "ServerTests.test_timeout_before_handshake_request": LOGS,
    "ServerUsageErrorsTests.test_invalid_subprotocol": TEXT,
    "ServerUsageErrorsTests.test_unsupported_compression": TEXT,
}
for _kind in ("Client", "Server"):
    KNOWN |= {f"{_kind}ConnectionTests.{_name}": _reason for _name, _reason in _BOTH.items()}
