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


# section -> key -> {type, default?, min?, max?, choices?, keys?, …}; kite.toml's one definition
CONFIG: Final[dict[str, dict[str, dict[str, Any]]]] = {'instance': {'name': {'type': 'str', 'doc': "the instance's name; default: the folder's name"}},
 'kernel': {'host': {'type': 'str', 'default': '127.0.0.1', 'doc': 'address to listen on'},
            'port': {'type': 'int', 'default': 7390, 'min': 0, 'max': 65535, 'doc': '0 = any free one'},
            'max_message': {'type': 'size',
                            'default': '1MiB',
                            'min': 4096,
                            'max': 16777216,
                            'live': True,
                            'doc': 'largest message'},
            'queue_messages': {'type': 'int',
                               'default': 1000,
                               'min': 1,
                               'max': 10000000,
                               'live': True,
                               'doc': 'outgoing queue of a connection, messages'},
            'queue_bytes': {'type': 'size',
                            'default': '8MiB',
                            'min': 4096,
                            'max': 1073741824,
                            'live': True,
                            'doc': 'outgoing queue of a connection, bytes'},
            'allow_remote': {'type': 'bool',
                             'default': False,
                             'doc': 'another host than loopback; also needs tls'},
            'tls': {'type': 'table',
                    'keys': {'cert': 'str', 'key': 'str'},
                    'all_of': ['cert', 'key'],
                    'doc': 'certificate and key, PEM files'},
            'origins': {'type': 'strlist', 'default': [], 'doc': 'further Origin values that may connect'},
            'hosts': {'type': 'strlist', 'default': [], 'doc': 'further Host names that may be asked for'}},
 'timing': {'scale': {'type': 'number',
                      'default': 1.0,
                      'min': 0.001,
                      'max': 1000,
                      'doc': 'multiplies all times of this section'},
            'debounce': {'type': 'duration', 'default': '5s', 'doc': 'quiet time before module.offline'},
            'launcher_grace': {'type': 'duration',
                               'positive': True,
                               'default': '35s',
                               'doc': "from the launcher's cut wire to the graceful exit"},
            'shutdown': {'type': 'duration',
                         'positive': True,
                         'default': '10s',
                         'doc': 'how long a graceful exit may take'},
            'auth': {'type': 'duration', 'positive': True, 'default': '5s', 'doc': 'first frame due'},
            'verify': {'type': 'duration',
                       'positive': True,
                       'default': '2s',
                       'doc': 'verification of a token'},
            'ping_active': {'type': 'duration',
                            'positive': True,
                            'default': '5s',
                            'doc': 'ping interval while calls run'},
            'ping_idle': {'type': 'duration',
                          'positive': True,
                          'default': '60s',
                          'doc': 'ping interval while nothing runs'},
            'pong': {'type': 'duration', 'positive': True, 'default': '5s', 'doc': 'an answer is due within'},
            'ping_misses': {'type': 'int',
                            'default': 3,
                            'min': 1,
                            'max': 1000,
                            'doc': 'unanswered pings in a row that close 4012'},
            'rate_window': {'type': 'duration',
                            'positive': True,
                            'default': '10s',
                            'doc': 'window of the authentication rate'},
            'rate_max': {'type': 'int',
                         'default': 20,
                         'min': 1,
                         'max': 1000000,
                         'doc': 'authentications in the window'},
            'critical': {'type': 'duration',
                         'positive': True,
                         'default': '5s',
                         'doc': 'how long a queue may stay critical'},
            'healthy_reset': {'type': 'duration',
                              'default': '60s',
                              'doc': 'up this long: back-off starts again'},
            'call': {'type': 'duration',
                     'positive': True,
                     'default': '30s',
                     'doc': 'default deadline of a call'}},
 'ownership': {'monitor': {'type': 'bool', 'default': True, 'doc': 'watch replicas and dispatch recoveries'},
               'heartbeat': {'type': 'duration', 'positive': True, 'default': '5s'},
               'suspect': {'type': 'duration', 'positive': True, 'default': '15s'},
               'expire': {'type': 'duration', 'positive': True, 'default': '30s'},
               'quiet': {'type': 'duration', 'positive': True, 'default': '5s'},
               'lease': {'type': 'duration', 'positive': True, 'default': '30s'},
               'attempts': {'type': 'int', 'default': 5, 'min': 1, 'max': 1000}},
 'streams': {'open': {'type': 'bool',
                      'default': False,
                      'doc': 'no token on the stream plane; loopback only'}},
 'streams.*': {'ring': {'type': 'int',
                        'default': 1000,
                        'min': 1,
                        'max': 10000000,
                        'doc': 'messages kept in memory'},
               'queue': {'type': 'int',
                         'default': 100,
                         'min': 1,
                         'max': 10000000,
                         'doc': 'queue of one subscriber'},
               'ping_interval': {'type': 'duration', 'positive': True, 'default': '1s'},
               'ping_timeout': {'type': 'duration', 'positive': True, 'default': '2s'},
               'close_timeout': {'type': 'duration', 'positive': True, 'default': '1s'},
               'durable': {'type': 'bool', 'default': False, 'doc': 'kept on disk'},
               'keep': {'type': 'size',
                        'default': '1GiB',
                        'min': 4096,
                        'max': 1125899906842624,
                        'doc': 'durable: bytes kept'},
               'keep_messages': {'type': 'int',
                                 'min': 1,
                                 'max': 9007199254740992,
                                 'doc': 'durable: messages kept'},
               'keep_age': {'type': 'duration', 'positive': True, 'doc': 'durable: age kept'}},
 'module.*': {'command': {'type': 'command', 'doc': 'argv; no shell'},
              'module': {'type': 'str',
                         'doc': "a Python package run as python -P -m NAME, or a .py file, by the launcher's "
                                'interpreter'},
              'after': {'type': 'strlist', 'default': [], 'doc': 'started after these'},
              'requires': {'type': 'strlist', 'default': [], 'doc': 'as after, and tied to their fates'},
              'restart': {'type': 'str', 'default': 'always', 'choices': ['always', 'on-failure', 'never']},
              'max_restarts': {'type': 'int', 'default': 5, 'min': 0, 'max': 1000000},
              'within': {'type': 'duration', 'positive': True, 'default': '60s'},
              'backoff': {'type': 'duration', 'default': '500ms'},
              'backoff_max': {'type': 'duration', 'default': '30s'},
              'retry_slowly': {'type': 'duration',
                               'positive': True,
                               'doc': 'after the budget is used up: one try each so often instead of none'},
              'stop_signal': {'type': 'str',
                              'default': 'TERM',
                              'choices': ['TERM', 'INT', 'HUP', 'QUIT', 'KILL', 'USR1', 'USR2']},
              'stop_timeout': {'type': 'duration', 'default': '10s'},
              'ready': {'type': 'table',
                        'keys': {'log': 'str',
                                 'tcp': {'type': 'int', 'min': 1, 'max': 65535},
                                 'http': 'str',
                                 'exit': {'type': 'int', 'min': 0, 'max': 255},
                                 'notify': 'bool',
                                 'delay': 'duration'},
                        'one_of': True,
                        'doc': "only for programs that don't speak Kite"},
              'ready_timeout': {'type': 'duration', 'positive': True, 'default': '30s'},
              'health': {'type': 'duration',
                         'positive': True,
                         'default': '15s',
                         'or_false': True,
                         'doc': 'false: no health RPC'},
              'memory_max': {'type': 'size', 'min': 1048576, 'max': 1125899906842624},
              'replicas': {'type': 'int', 'default': 1, 'min': 0, 'max': 1000},
              'essential': {'type': 'bool', 'default': False},
              'env': {'type': 'env',
                      'default': {},
                      'doc': 'values; { file = "…" } reads a secret; "$$" = "$"'},
              'env_file': {'type': 'str'},
              'secret_env': {'type': 'strlist', 'default': [], 'doc': 'names whose values are shown as •••'},
              'inherit_env': {'type': 'bool', 'default': True},
              'cwd': {'type': 'str', 'default': '.'},
              'user': {'type': 'str'},
              'umask': {'type': 'str', 'doc': 'octal, as "077"'},
              'nice': {'type': 'int', 'default': 0, 'min': -20, 'max': 19},
              'limits': {'type': 'table',
                         'keys': {'nofile': {'type': 'int', 'min': 0},
                                  'core': {'type': 'int', 'min': 0},
                                  'cpu': {'type': 'int', 'min': 0},
                                  'fsize': {'type': 'int', 'min': 0},
                                  'nproc': {'type': 'int', 'min': 0},
                                  'stack': {'type': 'int', 'min': 0},
                                  'memlock': {'type': 'int', 'min': 0},
                                  'as': {'type': 'int', 'min': 0}},
                         'doc': 'rlimits'},
              'enabled': {'type': 'bool', 'default': True},
              'token': {'type': 'str',
                        'choices': ['fd', 'file'],
                        'doc': 'how the token is handed over; only for modules that speak Kite'},
              'stdin': {'type': 'str', 'default': 'null', 'choices': ['null', 'pipe']},
              'group': {'type': 'str'},
              'notify_watchdog': {'type': 'duration', 'positive': True},
              'options': {'type': 'table', 'doc': 'reaches the module as KITE_OPTIONS_FILE'}},
 'group.*': {'strategy': {'type': 'str',
                          'default': 'one_for_one',
                          'choices': ['one_for_one', 'one_for_all', 'rest_for_one']}},
 'watchdog': {'enabled': {'type': 'bool', 'default': True},
              'restarts': {'type': 'int', 'default': 5, 'min': 0, 'max': 1000000},
              'within': {'type': 'duration', 'positive': True, 'default': '10m'}},
 'logging': {'format': {'type': 'str', 'default': 'console', 'choices': ['console', 'json']},
             'max_bytes': {'type': 'size', 'default': '10MiB', 'min': 65536, 'max': 1099511627776},
             'files': {'type': 'int', 'default': 5, 'min': 1, 'max': 1000, 'doc': 'the live one included'},
             'max_age': {'type': 'duration', 'positive': True, 'doc': 'rotate a file that is older'},
             'total': {'type': 'size', 'min': 65536, 'max': 1125899906842624, 'doc': 'all modules together'}},
 'notify': {'command': {'type': 'command'},
            'webhook': {'type': 'str'},
            'limit': {'type': 'rate', 'default': '10/1h'}},
 'permissions.*': {'call': {'type': 'strlist', 'live': True},
                   'publish': {'type': 'strlist', 'live': True},
                   'subscribe': {'type': 'strlist', 'live': True}},
 'cluster': {'url': {'type': 'str', 'doc': 'nats://HOST:PORT of the JetStream servers'}},
 'relay': {'listen': {'type': 'str',
                      'default': '127.0.0.1:7391',
                      'pattern': '(\\[[0-9A-Fa-f:.]+\\]|[^\\s:]+):[0-9]{1,5}',
                      'expected': 'HOST:PORT such as "127.0.0.1:7391"',
                      'doc': 'HOST:PORT of the console'},
           'tls': {'type': 'str',
                   'default': 'auto',
                   'choices': ['auto', 'off'],
                   'or_table': True,
                   'keys': {'cert': 'str', 'key': 'str'},
                   'all_of': ['cert', 'key'],
                   'doc': 'auto: a certificate of its own; off: plain, loopback only'},
           'origins': {'type': 'strlist', 'default': [], 'doc': 'further Origin values that may log in'},
           'session_idle': {'type': 'duration',
                            'positive': True,
                            'default': '12h',
                            'doc': 'a session unused this long ends'},
           'session_max': {'type': 'duration',
                           'positive': True,
                           'default': '30d',
                           'doc': 'a session ends after this whatever happens'}},
 'logs': {'follow_max': {'type': 'int', 'default': 32, 'min': 1, 'max': 1000, 'doc': 'followers at once'}},
 'audit': {'events': {'type': 'strlist',
                      'default': ['relay.request',
                                  'relay.alarm',
                                  'launcher.alarm',
                                  'watchdog.>',
                                  'recovery.abandoned',
                                  'replica.expired',
                                  'backup.>'],
                      'doc': 'patterns of the events that become rows'},
           'queue': {'type': 'int',
                     'default': 10000,
                     'min': 16,
                     'max': 1000000,
                     'doc': 'rows that may wait for the disk'}},
 'backup': {'every': {'type': 'duration', 'positive': True, 'default': '24h', 'doc': 'a snapshot so often'},
            'keep': {'type': 'int',
                     'default': 7,
                     'min': 1,
                     'max': 10000,
                     'doc': 'snapshots kept; older ones go once a newer one is verified'},
            'dir': {'type': 'str',
                    'default': '',
                    'doc': 'where snapshots are kept; default: backups/ in the state directory'}},
 'chat': {'model': {'type': 'str', 'default': 'model.generate', 'doc': 'the method that writes the answers'},
          'system': {'type': 'str', 'default': '', 'doc': 'what the model is told first'},
          'tools': {'type': 'any',
                    'default': [],
                    'doc': '[[chat.tools]] name, method, description, parameters, approval, timeout_s'},
          'save_every_s': {'type': 'number',
                           'default': 0.5,
                           'min': 0.05,
                           'max': 60,
                           'doc': 'how much of an answer a kill may cost'},
          'rounds_max': {'type': 'int',
                         'default': 8,
                         'min': 1,
                         'max': 100,
                         'doc': 'rounds of tools in one answer'},
          'approval_s': {'type': 'number',
                         'default': 600,
                         'min': 1,
                         'max': 604800,
                         'doc': 'an approval that nobody gives is a refusal'}},
 'model': {'provider': {'type': 'str', 'default': 'scripted', 'choices': ['scripted', 'openai']},
           'base_url': {'type': 'str', 'default': 'http://127.0.0.1:11434/v1', 'doc': 'openai: the endpoint'},
           'api_key_file': {'type': 'str',
                            'default': '',
                            'doc': 'openai: a file that only its user can read'},
           'model': {'type': 'str', 'default': 'default', 'doc': "openai: the model's name"},
           'timeout_s': {'type': 'number', 'default': 120, 'min': 1, 'max': 3600},
           'attempts': {'type': 'int', 'default': 4, 'min': 1, 'max': 20},
           'word_s': {'type': 'number',
                      'default': 0.02,
                      'min': 0,
                      'max': 10,
                      'doc': 'scripted: the pause between two words'},
           'script': {'type': 'any',
                      'default': [],
                      'doc': 'scripted: [[model.script]] match, reply, tool, arguments'},
           'concurrency': {'type': 'int', 'default': 8, 'min': 1, 'max': 1000}}}
