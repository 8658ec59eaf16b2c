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
 'logs': {},
 'audit': {},
 'backup': {},
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
