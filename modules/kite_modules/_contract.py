"""Generated from kernel/contract/*.toml by scripts/gen_contract.py. Do not edit.

Tables of the wire; what each row is for stands as its comment or `why`.
"""

from typing import Any, Final, NamedTuple

class Close(NamedTuple):
    code: int
    name: str
    strategy: str
    kind: str
    why: str


CLOSE: Final[dict[int, Close]] = {
    1000: Close(1000, 'normal', 'never', 'normal', 'the work is done; coming back would be a mistake'),
    1001: Close(1001, 'going_away', 'standard', 'server', 'the server is stopping; another one may stand there soon'),
    1002: Close(1002, 'protocol_error', 'never', 'protocol', 'the same bytes would be refused again'),
    1003: Close(1003, 'unsupported_data', 'never', 'protocol', 'text frames only'),
    1006: Close(1006, 'abnormal', 'standard', 'transport', 'the wire ended without a close frame; never sent, only seen'),
    1007: Close(1007, 'invalid_payload', 'never', 'protocol', 'text that is no UTF-8'),
    1008: Close(1008, 'policy_violation', 'never', 'policy', 'TLS required or access refused'),
    1009: Close(1009, 'message_too_big', 'never', 'protocol', 'over max_message; sending it again changes nothing'),
    1010: Close(1010, 'mandatory_extension', 'never', 'protocol', 'no extensions are offered'),
    1011: Close(1011, 'internal_error', 'standard', 'server', "a fault of the server's own"),
    1012: Close(1012, 'service_restart', 'standard', 'server', 'the service restarts'),
    1013: Close(1013, 'try_again_later', 'standard', 'server', 'a slow consumer was taken off; it comes back with its cursor'),
    4001: Close(4001, 'auth_failed', 'never', 'auth', "token unknown, expired, revoked or another module's"),
    4002: Close(4002, 'auth_timeout', 'standard', 'timeout', 'no first frame in time, or the verification took too long'),
    4003: Close(4003, 'auth_malformed', 'never', 'protocol', 'the first frame is no auth request'),
    4004: Close(4004, 'mfa_failed', 'never', 'auth', 'the second factor was wrong; a person must type it again'),
    4010: Close(4010, 'replaced', 'never', 'replaced', 'a newer connection of the same module took over'),
    4011: Close(4011, 'queue_pressure', 'standard', 'pressure', 'the outgoing queue stayed critical or ran full'),
    4012: Close(4012, 'ping_timeout', 'standard', 'timeout', 'three pings in a row unanswered'),
    4020: Close(4020, 'rate_limited', 'cooldown', 'rate-limit', 'too many authentications in the window'),
}
CLOSE_NORMAL: Final = 1000
CLOSE_GOING_AWAY: Final = 1001
CLOSE_PROTOCOL_ERROR: Final = 1002
CLOSE_UNSUPPORTED_DATA: Final = 1003
CLOSE_ABNORMAL: Final = 1006
CLOSE_INVALID_PAYLOAD: Final = 1007
CLOSE_POLICY_VIOLATION: Final = 1008
CLOSE_MESSAGE_TOO_BIG: Final = 1009
CLOSE_MANDATORY_EXTENSION: Final = 1010
CLOSE_INTERNAL_ERROR: Final = 1011
CLOSE_SERVICE_RESTART: Final = 1012
CLOSE_TRY_AGAIN_LATER: Final = 1013
CLOSE_AUTH_FAILED: Final = 4001
CLOSE_AUTH_TIMEOUT: Final = 4002
CLOSE_AUTH_MALFORMED: Final = 4003
CLOSE_MFA_FAILED: Final = 4004
CLOSE_REPLACED: Final = 4010
CLOSE_QUEUE_PRESSURE: Final = 4011
CLOSE_PING_TIMEOUT: Final = 4012
CLOSE_RATE_LIMITED: Final = 4020
# protocol 2 number -> what a protocol 1 client is sent
CLOSE_TO_LEGACY: Final[dict[int, int]] = {4002: 4003, 4004: 4003, 4010: 4000, 4011: 4010, 4020: 4029}
# strategy -> the verdict that a `bye` says
VERDICTS: Final[dict[str, str]] = {'never': 'never', 'standard': 'retry', 'cooldown': 'back_off'}


E_PARSE_ERROR: Final = -32700
E_INVALID_REQUEST: Final = -32600
E_METHOD_NOT_FOUND: Final = -32601
E_INVALID_PARAMS: Final = -32602
E_INTERNAL_ERROR: Final = -32603
E_OFFLINE: Final = -32001
E_CONNECTION_LOST: Final = -32002
E_DEADLINE: Final = -32003
E_FORBIDDEN: Final = -32004
E_OVERLOADED: Final = -32005
E_FENCED: Final = -32006
E_CONFLICT: Final = -32007
E_STORE_UNAVAILABLE: Final = -32008
E_CLOSING: Final = -32010
E_CANCELLED: Final = -32800
ERROR_TEXT: Final[dict[int, str]] = {-32700: 'parse error',
 -32600: 'invalid request',
 -32601: 'method not found',
 -32602: 'invalid params',
 -32603: 'internal error',
 -32001: 'module offline',
 -32002: 'connection lost, outcome unknown',
 -32003: 'deadline exceeded',
 -32004: 'not permitted',
 -32005: 'overloaded',
 -32006: 'fenced',
 -32007: 'conflict',
 -32008: 'store unavailable',
 -32010: 'closing the connection',
 -32800: 'cancelled'}
ERROR_REASONS: Final[dict[int, tuple[str, ...]]] = {-32700: ('not_json', 'not_finite', 'lone_surrogate', 'number_too_long'),
 -32600: ('not_request',
          'too_deep',
          'duplicate_member',
          'empty_batch',
          'batch_too_long',
          'duplicate_id',
          'id_too_long',
          'already_authenticated',
          'too_many_subscriptions',
          'too_many_methods',
          'limit'),
 -32601: ('unknown_method',),
 -32602: ('invalid_params',),
 -32603: ('bad_answer', 'bug'),
 -32001: ('unknown_module', 'offline', 'not_ready', 'debounce'),
 -32002: ('connection_lost', 'restarted'),
 -32003: ('deadline',),
 -32004: ('no_permission', 'reserved_event', 'not_open'),
 -32005: ('too_many_in_flight', 'queue_full', 'rate'),
 -32006: ('expired_replica', 'stale_owner', 'wrong_token', 'not_running'),
 -32007: ('running', 'interrupted', 'finished', 'exists', 'wrong_recovery'),
 -32008: ('unavailable', 'read_only', 'full', 'damaged'),
 -32010: ('auth_failed',
          'auth_timeout',
          'auth_malformed',
          'replaced',
          'queue_pressure',
          'ping_timeout',
          'rate_limited'),
 -32800: ('cancelled',)}


class Strategy(NamedTuple):
    initial_s: float
    factor: float
    max_s: float
    max_tries: int | None  # None = unlimited
    jitter_ratio: float


INTERNAL_STANDARD: Final = Strategy(0.5, 2.0, 10.0, None, 0.2)  # localhost: a kernel restart takes seconds
INTERNAL_COOLDOWN: Final = Strategy(10.0, 1.0, 10.0, 5, 0.0)  # the rate window is 10 s; after five tries it is no accident
REMOTE_STANDARD: Final = Strategy(1.0, 2.0, 15.0, None, 0.2)  # across a network: higher latency, more jitter
REMOTE_COOLDOWN: Final = Strategy(10.0, 1.0, 10.0, 5, 0.0)  # the rate window is 10 s; after five tries it is no accident


PROTOCOL: Final = 2  # version: protocol 1 clients get the old close numbers
MAX_DEPTH: Final = 64  # brackets: deep nesting is a RecursionError in every JSON library
MAX_NUMBER_DIGITS: Final = 400  # characters: above it every reader overflows or takes quadratic time
MAX_BATCH: Final = 1000  # members: one frame must not hold the hub for seconds
MAX_IN_FLIGHT: Final = 1024  # calls: per connection; beyond it -32005 with retry_after
MAX_SUBSCRIPTIONS: Final = 10000  # patterns: per connection
MAX_METHODS: Final = 10000  # methods: per connection
MAX_ID_BYTES: Final = 256  # bytes: an id is a label, not a payload
MAX_EVENT_NAME_BYTES: Final = 256  # bytes: an event name is a label
MAX_MESSAGE_CEILING_BYTES: Final = 16777216  # bytes: the largest max_message that may be configured
MAX_REASON_BYTES: Final = 123  # bytes: RFC 6455 5.5: a control frame carries 125 bytes, two are the code
MAX_FRAGMENTS: Final = 4096  # frames: empty continuation frames are free to send and not free to hold
PRE_AUTH_FRAME_BYTES: Final = 4096  # bytes: an auth request is small
PRE_AUTH_CONNECTIONS: Final = 256  # connections: slots of their own: strangers never take a module's
HTTP_HEAD_BYTES: Final = 16384  # bytes: 431 above it
READ_BATCH_BYTES: Final = 262144  # bytes: what one wire may bring in before the others have their turn
RETAINED_NAMES: Final = 10000  # names: retained values live in memory
RETAINED_BYTES: Final = 67108864  # bytes: retained values live in memory
IDEMPOTENCY_KEYS: Final = 10000  # keys: per caller and method
IDEMPOTENCY_S: Final = 300  # seconds: remembered this long
RPC_ACTIVE_S: Final = 30  # seconds: a call within this time means the quick ping interval
CLOSED_KEPT: Final = 200  # rows: kernel.closed
STREAM_RING: Final = 1000  # messages: seeds/003
STREAM_QUEUE: Final = 100  # messages: seeds/003, per subscriber
STREAM_CLOSE_S: Final = 1.0  # seconds: seeds/003 close_timeout
STREAMS_MAX: Final = 1000  # streams: at once; the longest unused unconfigured one makes room, else a new name is refused
STREAM_ID_BYTES: Final = 128  # bytes: a message's own id is a label
STREAM_IDS: Final = 10000  # ids: remembered beyond the ring: a publisher repeats itself seconds after a cut
STREAM_RING_BYTES: Final = 268435456  # bytes: one ring, whatever its count says
STREAM_RINGS_BYTES: Final = 1073741824  # bytes: all rings together; beyond it each is cut to 1 MiB
STREAM_WAITING: Final = 10000  # publishes: of one durable stream that may wait for the disk; beyond it -32005


class Method(NamedTuple):
    name: str
    access: str
    params: dict[str, str]
    result: tuple[str, ...]


METHODS: Final[dict[str, Method]] = {
    'registry.register': Method('registry.register', 'all', {'methods': 'list', 'service': 'str?', 'meta': 'object?', 'accepts_meta': 'bool?'}, ('state',)),
    'registry.unregister': Method('registry.unregister', 'all', {'methods': 'list?'}, ('state',)),
    'registry.list_modules': Method('registry.list_modules', 'all', {}, ('modules',)),
    'registry.get_module': Method('registry.get_module', 'all', {'module_id': 'str'}, ('module_id', 'state', 'since', 'methods', 'service', 'grade', 'reconnects', 'meta')),
    'event.subscribe': Method('event.subscribe', 'all', {'events': 'list', 'policy': 'str?', 'queue': 'int?'}, ('events',)),
    'event.unsubscribe': Method('event.unsubscribe', 'all', {'events': 'list'}, ('events',)),
    'event.publish': Method('event.publish', 'all', {'event': 'str', 'data': 'any?', 'exclude_self': 'bool?', 'retain': 'bool?', 'key': 'str?'}, ('delivered',)),
    'kernel.get_connection_stats': Method('kernel.get_connection_stats', 'all', {'module_id': 'str?'}, ('modules',)),
    'kernel.flows': Method('kernel.flows', 'all', {}, ('flows',)),
    'kernel.info': Method('kernel.info', 'all', {}, ('version', 'protocol', 'epoch', 'uptime_s', 'timing', 'limits', 'connections', 'modules')),
    'kernel.pending': Method('kernel.pending', 'admin', {}, ('calls',)),
    'kernel.closed': Method('kernel.closed', 'admin', {'limit': 'int?'}, ('closed',)),
    'kernel.drain': Method('kernel.drain', 'admin', {'deadline_s': 'number?'}, ()),
    'kernel.shutdown_module': Method('kernel.shutdown_module', 'admin', {'module_id': 'str', 'reason': 'str?', 'deadline_s': 'number?'}, ()),
    'stream.publish': Method('stream.publish', 'all', {'stream': 'str', 'data': 'str', 'id': 'str?'}, ('seq', 'epoch')),
    'stream.list': Method('stream.list', 'all', {}, ('streams',)),
    'stream.stats': Method('stream.stats', 'all', {'stream': 'str'}, ('stream', 'state', 'subscribers', 'publishers', 'dropped', 'seq', 'epoch', 'ring', 'bytes', 'first', 'published', 'rate', 'lag_max', 'durable', 'lags')),
    'stream.delete': Method('stream.delete', 'all', {'stream': 'str'}, ()),
    'replica.register': Method('replica.register', 'all', {'replica_id': 'any?', 'meta': 'any?'}, ('replica_id', 'token', 'heartbeat_s', 'suspect_s', 'expire_s')),
    'replica.heartbeat': Method('replica.heartbeat', 'all', {'replica_id': 'any', 'token': 'any', 'tasks': 'any', 'state': 'any?'}, ('state',)),
    'replica.leave': Method('replica.leave', 'all', {'replica_id': 'any', 'token': 'any'}, ('state',)),
    'replica.list': Method('replica.list', 'all', {}, ('replicas',)),
    'ownership.create': Method('ownership.create', 'all', {'key': 'any', 'data': 'any?', 'route_key': 'any?'}, ('key', 'state', 'epoch', 'revision')),
    'ownership.claim': Method('ownership.claim', 'all', {'key': 'any', 'replica_id': 'any', 'replica_token': 'any', 'nonce': 'any?'}, ('key', 'guard', 'state', 'data', 'checkpoint', 'revision')),
    'ownership.write': Method('ownership.write', 'all', {'key': 'any', 'guard': 'any', 'state': 'any?', 'data': 'any?', 'append': 'any?', 'checkpoint': 'any?', 'nonce': 'any?'}, ('revision', 'epoch')),
    'ownership.release': Method('ownership.release', 'all', {'key': 'any', 'guard': 'any', 'state': 'any', 'nonce': 'any?'}, ('state', 'revision')),
    'ownership.pause': Method('ownership.pause', 'all', {'key': 'any', 'guard': 'any', 'checkpoint': 'any', 'open_call': 'any?', 'nonce': 'any?'}, ('recovery_id',)),
    'ownership.get': Method('ownership.get', 'all', {'key': 'any'}, ('key', 'state', 'owner', 'epoch', 'revision', 'route_key', 'checkpoint', 'data', 'recovery_id')),
    'ownership.list': Method('ownership.list', 'all', {'prefix': 'any?', 'state': 'any?'}, ('records', 'more')),
    'recovery.list': Method('recovery.list', 'all', {'state': 'any?'}, ('recoveries',)),
    'recovery.lease': Method('recovery.lease', 'all', {'dispatcher': 'any?', 'limit': 'any?'}, ('recoveries',)),
    'recovery.claim': Method('recovery.claim', 'all', {'recovery_id': 'any', 'token': 'any', 'checkpoint_epoch': 'any', 'replica_id': 'any', 'replica_token': 'any', 'nonce': 'any?'}, ('key', 'guard', 'state', 'data', 'checkpoint', 'revision', 'cause', 'open_call')),
    'recovery.complete': Method('recovery.complete', 'all', {'recovery_id': 'any', 'guard': 'any', 'outcome': 'any', 'why': 'any?'}, ('state',)),
    'fact.get': Method('fact.get', 'admin', {'bucket': 'any', 'key': 'any'}, ('bucket', 'key', 'value', 'revision')),
    'fact.list': Method('fact.list', 'admin', {'bucket': 'any', 'prefix': 'any?'}, ('facts',)),
    'fact.backup': Method('fact.backup', 'all', {'name': 'any'}, ('path', 'revision', 'facts', 'bytes')),
}


EVENTS: Final[dict[str, str]] = {'module.ready': 'module',
 'module.offline': 'kernel',
 'module.exiting': 'module',
 'module.shutdown': 'kernel',
 'module.shutdown_ack': 'module',
 'system.ping': 'kernel',
 'system.pong': 'module'}
NOTICES: Final[tuple[str, ...]] = ('bye', 'pressure', 'event.gap')
SHUTDOWN_REASONS: Final[tuple[str, ...]] = ('launcher_lost', 'kernel_stop', 'module_stop', 'instance_stop')
# after one of these a client never comes back
SHUTDOWN_FINAL: Final[tuple[str, ...]] = ('launcher_lost', 'module_stop', 'instance_stop')
