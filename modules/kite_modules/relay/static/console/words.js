// Every text of the console, in both languages. A text is a string, or a function of what it tells.

const EN = {
  title: "Kite", other_lang: "中文", other_lang_label: "切换到中文",
  theme: "Colours", theme_auto: "as the system", theme_light: "light", theme_dark: "dark",
  user: "User", password: "Password", code: "Code from your authenticator, or a recovery code", sign_in: "Sign in", next: "Continue",
  sign_in_to: "Sign in to this instance", code_head: "Second step", back: "Back", signing_in: "One moment…", logout: "Sign out",
  err_password: "User or password is wrong. Please try again.", err_code: "This code is wrong or was used already. Please try again.",
  err_rate: "Too many tries. Wait a little, then try again.", err_late: "That took too long. Please sign in again.",
  err_ended: "Your session has ended. Please sign in again.", err_wire: "The relay does not answer.", err_1008: "This address may not be used.",
  err_replaced: (t) => `The connection ended: ${t}`,
  nav_overview: "Overview", nav_streams: "Streams", nav_logs: "Logs", nav_ownership: "Ownership", nav_audit: "Audit", nav_chat: "Chat", menu: "Pages",
  skip: "Skip to content",
  s_idle: "Idle", s_connecting: "Connecting…", s_authenticating: "Signing in…", s_syncing: "Catching up…", s_open: "Connected",
  s_waiting: "Waiting", s_stopped: "Stopped", due: (s) => `next try in ${s} s`, offline: "no network", retry: "Retry now",
  v_ok: "All is well", v_degraded: "Some things need attention", v_failed: "Something has failed", v_unknown: "Not known yet", v_stopped: "Stopped",
  v_running: (n) => `${n} modules, all as wanted`, v_named: (t) => t, v_alone: (n) => `No launcher here; ${n} connected`, v_away: "The kernel is away; what you see is what was last known.",
  m_module: "Module", m_state: "State", m_grade: "Grade", m_restarts: "Restarts", m_cpu: "CPU", m_memory: "Memory", m_queue: "Queue", m_rtt: "Round trip", m_actions: "",
  modules: "Modules", filter: "Filter modules", none_match: "No module matches.", no_modules: "No modules yet.", loading: "Loading…",
  st_waiting: "waiting", st_starting: "starting", st_running: "running", st_stopping: "stopping", st_stopped: "stopped", st_done: "done", st_backoff: "back-off", st_failed: "failed",
  g_healthy: "healthy", g_good: "good", g_excellent: "excellent", g_fair: "fair", g_degraded: "degraded", g_poor: "poor", g_critical: "critical", g_unhealthy: "unhealthy",
  restart: "Restart", start: "Start", stop: "Stop", confirm_restart: (n) => `Restart ${n}?`, confirm_stop: (n) => `Stop ${n}?`, confirm_start: (n) => `Start ${n}?`,
  confirm_why: "Calls in its hands are finished or answered with an error that says whether they may be repeated.", confirm_stop_why: "It stays stopped until somebody starts it.", cancel: "Cancel", yes_restart: "Restart", yes_stop: "Stop", yes_start: "Start",
  done_restart: (n) => `${n} was restarted.`, done_stop: (n) => `${n} is stopped.`, done_start: (n) => `${n} was started.`, failed_do: (n, t) => `${n}: ${t}`,
  events: "Events", no_events: "Nothing has happened yet.", pause: "Pause", resume: "Go on", missed: (n) => `${n} events were too many to show`, filter_events: "Filter events", events_paused: (n) => `paused; ${n} newer`,
  topology: "Who calls whom", no_flows: "No calls between modules yet.", per_s: "/s", calls_total: (n) => `${n} calls`, publishes: "Publishing", from: "From", to: "To", rate: "Rate", total: "In all",
  own_launcher: "launcher", own_kernel: "kernel", own_watchdog: "watchdog", up: (t) => `up ${t}`, pid: "pid",
  not_found: "There is no such page.", not_allowed: "Your role may not see this.", unavailable: (m) => `The module ${m} is not running here. Enable it with a [${m}] section in kite.toml.`,
  timeline: "What happened", no_timeline: "Nothing is on record.", latency: "Round trip over time", no_latency: "No measurement yet.", methods: "Methods", no_methods: "It offers no methods.", call: "Call", calling: "Calling…", params: "Parameters (JSON)", result: "Result", error: "Error", bad_json: "This is no JSON.", required: "required", budget: (l, o, w) => `${l} of ${o} restarts left in ${w} s`, why: "Why", since: "Since", log_of: "Its log", numbers: "Numbers", no_module: (n) => `There is no module ${n}.`, calls_now: "calls in hand", in_out: "frames in / out", reconnects: "reconnects", score: "score",
  streams: "Streams", no_streams: "There are no streams yet.", stream: "Stream", subscribers: "Subscribers", dropped: "Dropped", seq: "Last number", lag: "Lag", bytes: "Kept", tail: "Follow", stop_tail: "Stop following", tail_of: (n) => `Records of ${n}`, reset: "Some records are no longer kept.", tail_end: (w) => `The stream ended: ${w}`, stream_rate: "Messages a second",
  logs: "Logs", follow: "Follow", search: "Search (regular expression)", all_modules: "all modules", no_lines: "No lines.", run_search: "Search", lines: (n) => `${n} lines`,
  ownership: "Ownership", owners: "Keys and owners", no_keys: "Nothing is owned.", key: "Key", owner: "Owner", epoch: "Epoch", recoveries: "Recoveries", no_recoveries: "Nothing waits to be recovered.", cause: "Cause", replicas: "Replicas", no_replicas: "No replicas.", beat: "Last beat", tasks: "Tasks",
  audit: "Audit trail", no_audit: "No entries.", when: "When", who: "Who", what: "What", verdict: "Verdict", details: "Details",
  chat: "Chat", new_chat: "New chat", say: "Write a message", send: "Send", no_chats: "No chats yet.", stop_answer: "Stop", approve: "Let it run", deny: "Refuse", tool_wait: (n) => `${n} waits for your approval`, you: "You", assistant: "Kite", pick_chat: "Choose a chat or begin a new one.", untitled: "untitled",
  ago_s: (n) => `${n} s`, ago_m: (n) => `${n} min`, ago_h: (n) => `${n} h`, ago_d: (n) => `${n} d`,
  role_viewer: "viewer", role_operator: "operator", role_admin: "admin", details_of: (n) => `Details of ${n}`, close: "Close", refresh: "Refresh", spark: (v) => `round trip ${v} ms`,
};

const ZH = {
  title: "Kite", other_lang: "English", other_lang_label: "Switch to English",
  theme: "配色", theme_auto: "跟随系统", theme_light: "浅色", theme_dark: "深色",
  user: "用户名", password: "密码", code: "验证器上的代码，或恢复码", sign_in: "登录", next: "继续",
  sign_in_to: "登录此实例", code_head: "第二步", back: "返回", signing_in: "请稍候…", logout: "退出登录",
  err_password: "用户名或密码不对，请重试。", err_code: "代码不对或已用过，请重试。",
  err_rate: "尝试次数过多，请稍后再试。", err_late: "等待太久，请重新登录。",
  err_ended: "会话已结束，请重新登录。", err_wire: "中继没有应答。", err_1008: "不允许使用这个地址。",
  err_replaced: (t) => `连接已结束：${t}`,
  nav_overview: "总览", nav_streams: "数据流", nav_logs: "日志", nav_ownership: "归属", nav_audit: "审计", nav_chat: "聊天", menu: "页面",
  skip: "跳到正文",
  s_idle: "空闲", s_connecting: "正在连接…", s_authenticating: "正在登录…", s_syncing: "正在同步…", s_open: "已连接",
  s_waiting: "等待重连", s_stopped: "已停止", due: (s) => `${s} 秒后重试`, offline: "没有网络", retry: "立即重试",
  v_ok: "一切正常", v_degraded: "有情况需要留意", v_failed: "有模块已失败", v_unknown: "尚不清楚", v_stopped: "已停止",
  v_running: (n) => `${n} 个模块，全部符合预期`, v_named: (t) => t, v_alone: (n) => `没有启动器；${n} 个连接`, v_away: "内核不在线；下面是最后已知的状态。",
  m_module: "模块", m_state: "状态", m_grade: "质量", m_restarts: "重启", m_cpu: "CPU", m_memory: "内存", m_queue: "队列", m_rtt: "往返时间", m_actions: "",
  modules: "模块", filter: "筛选模块", none_match: "没有匹配的模块。", no_modules: "还没有模块。", loading: "载入中…",
  st_waiting: "等待中", st_starting: "启动中", st_running: "运行中", st_stopping: "停止中", st_stopped: "已停止", st_done: "已完成", st_backoff: "退避中", st_failed: "失败",
  g_healthy: "健康", g_good: "良好", g_excellent: "优秀", g_fair: "一般", g_degraded: "下降", g_poor: "较差", g_critical: "危急", g_unhealthy: "不健康",
  restart: "重启", start: "启动", stop: "停止", confirm_restart: (n) => `要重启 ${n} 吗？`, confirm_stop: (n) => `要停止 ${n} 吗？`, confirm_start: (n) => `要启动 ${n} 吗？`,
  confirm_why: "手头的调用会先完成，或以错误回答，并说明能否重试。", confirm_stop_why: "它会一直停着，直到有人启动它。", cancel: "取消", yes_restart: "重启", yes_stop: "停止", yes_start: "启动",
  done_restart: (n) => `${n} 已重启。`, done_stop: (n) => `${n} 已停止。`, done_start: (n) => `${n} 已启动。`, failed_do: (n, t) => `${n}：${t}`,
  events: "事件", no_events: "还没有事件。", pause: "暂停", resume: "继续", missed: (n) => `另有 ${n} 个事件未逐一显示`, filter_events: "筛选事件", events_paused: (n) => `已暂停；有 ${n} 个新事件`,
  topology: "调用关系", no_flows: "模块之间还没有调用。", per_s: "/秒", calls_total: (n) => `${n} 次调用`, publishes: "发布", from: "来自", to: "去往", rate: "速率", total: "总计",
  own_launcher: "启动器", own_kernel: "内核", own_watchdog: "看门狗", up: (t) => `已运行 ${t}`, pid: "进程号",
  not_found: "没有这个页面。", not_allowed: "您的角色无权查看。", unavailable: (m) => `模块 ${m} 没有在运行。在 kite.toml 里加上 [${m}] 一节即可启用。`,
  timeline: "经过", no_timeline: "没有记录。", latency: "往返时间走势", no_latency: "还没有测量值。", methods: "方法", no_methods: "它不提供方法。", call: "调用", calling: "调用中…", params: "参数（JSON）", result: "结果", error: "错误", bad_json: "这不是 JSON。", required: "必填", budget: (l, o, w) => `${w} 秒内还可重启 ${l} / ${o} 次`, why: "原因", since: "自", log_of: "它的日志", numbers: "数据", no_module: (n) => `没有模块 ${n}。`, calls_now: "手头的调用", in_out: "收 / 发帧数", reconnects: "重连", score: "得分",
  streams: "数据流", no_streams: "还没有数据流。", stream: "数据流", subscribers: "订阅者", dropped: "丢弃", seq: "最新编号", lag: "滞后", bytes: "保留", tail: "跟随", stop_tail: "停止跟随", tail_of: (n) => `${n} 的记录`, reset: "有些记录已不再保留。", tail_end: (w) => `数据流已结束：${w}`, stream_rate: "每秒消息数",
  logs: "日志", follow: "跟随", search: "搜索（正则表达式）", all_modules: "全部模块", no_lines: "没有内容。", run_search: "搜索", lines: (n) => `${n} 行`,
  ownership: "归属", owners: "键与所有者", no_keys: "没有任何归属。", key: "键", owner: "所有者", epoch: "纪元", recoveries: "恢复", no_recoveries: "没有等待恢复的工作。", cause: "起因", replicas: "副本", no_replicas: "没有副本。", beat: "上次心跳", tasks: "任务",
  audit: "审计记录", no_audit: "没有记录。", when: "时间", who: "谁", what: "做了什么", verdict: "裁定", details: "详情",
  chat: "聊天", new_chat: "新聊天", say: "写一条消息", send: "发送", no_chats: "还没有聊天。", stop_answer: "停止", approve: "允许运行", deny: "拒绝", tool_wait: (n) => `${n} 等待您的批准`, you: "您", assistant: "Kite", pick_chat: "选择一个聊天，或新建一个。", untitled: "未命名",
  ago_s: (n) => `${n} 秒`, ago_m: (n) => `${n} 分钟`, ago_h: (n) => `${n} 小时`, ago_d: (n) => `${n} 天`,
  role_viewer: "查看者", role_operator: "操作员", role_admin: "管理员", details_of: (n) => `${n} 的详情`, close: "关闭", refresh: "刷新", spark: (v) => `往返 ${v} 毫秒`,
};

const TABLES = { en: EN, zh: ZH };
const kept = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
export const keep = (key, value) => { try { localStorage.setItem(key, value); } catch { /* a page without storage forgets */ } };

let lang = kept("kite.lang") ?? (navigator.language?.toLowerCase().startsWith("zh") ? "zh" : "en");
if (!(lang in TABLES)) lang = "en";

export const language = () => lang;
export function useLanguage(next) {
  lang = next in TABLES ? next : "en";
  document.documentElement.lang = lang === "zh" ? "zh-CN" : "en";
}
useLanguage(lang);

export let theme = kept("kite.theme") ?? "auto";
export function useTheme(next) {
  theme = next;
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
}
useTheme(theme);

/** The text of a name; unknown names stand for themselves, so that new states of a newer kernel are still shown. */
export function t(name, ...values) {
  const text = TABLES[lang][name];
  if (text === undefined) return name.replace(/^[a-z]+_/, "");
  return typeof text === "function" ? text(...values) : text;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  let size = value, unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}
export const number = (value, digits = 1) => (Number.isFinite(value) ? (Number.isInteger(value) ? String(value) : value.toFixed(digits)) : "–");

/** How long ago, in the largest whole unit. */
export function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return t("ago_s", s);
  if (s < 3600) return t("ago_m", Math.floor(s / 60));
  if (s < 86400) return t("ago_h", Math.floor(s / 3600));
  return t("ago_d", Math.floor(s / 86400));
}
export const since = (iso) => { const at = Date.parse(iso); return Number.isNaN(at) ? "–" : span((Date.now() - at) / 1000); };
export function clock(value) {
  const at = new Date(typeof value === "number" ? value * 1000 : value);
  return Number.isNaN(at.getTime()) ? "–" : at.toLocaleTimeString(lang === "zh" ? "zh-CN" : "en-GB", { hour12: false });
}
export function stamp(value) {
  const at = new Date(typeof value === "number" ? value * 1000 : value);
  return Number.isNaN(at.getTime()) ? "–" : at.toLocaleString(lang === "zh" ? "zh-CN" : "en-GB", { hour12: false });
}
