"""`completion bash|zsh|fish`: a script for the shell that completes commands, options and the instance's names.

Names of modules come from the instance at hand, when they are asked for: `kite-launch completion names`, quietly
nothing where there is none. The script serves `kite-launch` and `kite`.
Source: spec 05 §3.
"""

from __future__ import annotations

import argparse
from typing import Final

from kite_launcher.cli.commands import COMMANDS, Line
from kite_launcher.cli.fail import OK, say
from kite_launcher.cli.instance import Instance

# Commands that only `kite` has; the console's own house describes them, completion needs no more than their names.
_KITE: Final = (
    "call",
    "pub",
    "sub",
    "events",
    "stream",
    "methods",
    "ps",
    "top",
    "chat",
    "relay",
    "audit",
    "backup",
    "ownership",
    "recovery",
    "bench",
)
_NAMED: Final = ("start", "stop", "restart", "logs", "wait", "why", "token")


def run(line: Line, instance: Instance) -> int:
    """Print the script, or the names of the instance at hand."""
    shell = line.args.shell
    if shell == "names":
        for name in _names():
            say(name)
        return OK
    say({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]().rstrip("\n"))
    return OK


def _names() -> list[str]:
    """Return the modules that runs or could run; no fault is worth a word in the middle of a command line."""
    import os

    from kite_launcher.cli.fail import Failure
    from kite_launcher.cli.instance import Asked, find
    from kite_launcher.cli.status import gather
    from kite_launcher.edge.config_file import Unreadable, load_file

    try:
        instance = find(Asked(), os.environ, os.getcwd())
        running = [str(row.get("name")) for row in gather(instance).get("modules") or ()]
        if running or instance.config is None:
            return running
        found = load_file(instance.config)
    except (Failure, OSError):
        return []
    return [] if isinstance(found, Unreadable) or found.spec is None else list(found.spec.modules)


def _options(name: str) -> list[tuple[str, str]]:
    """Return the long options of one command with their help."""
    parser = argparse.ArgumentParser(add_help=False)
    COMMANDS[name].arguments(parser)
    found = [
        (option, action.help or "")
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    ]
    if COMMANDS[name].instance:
        found += [("--config", "the instance's kite.toml"), ("--state-dir", "the instance's state directory")]
    return [*found, ("--help", "what it does and an example")]


def _words(name: str) -> str:
    fixed = {"completion": "bash zsh fish", "service": "install uninstall show"}
    return " ".join([*(option for option, _ in _options(name)), *fixed.get(name, "").split()])


def _bash() -> str:
    cases = "\n".join(f'    {name}) words="{_words(name)}" ;;' for name in COMMANDS)
    named = "|".join(_NAMED)
    return f"""# bash completion for kite and kite-launch:  source <(kite-launch completion bash)
_kite_launch() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} word command="" words=""
  COMPREPLY=()
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    [[ $word != -* ]] && {{ command=$word; break; }}
  done
  case $prev in
    --config|--state-dir|--output|--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
  esac
  if [[ -z $command ]]; then
    words="{" ".join(COMMANDS)}"
    [[ ${{COMP_WORDS[0]##*/}} == kite ]] && words="$words {" ".join(_KITE)}"
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    return
  fi
  case $command in
{cases}
  esac
  case $command in
    {named}) words="$words $(kite-launch completion names 2>/dev/null)" ;;
    init) COMPREPLY=($(compgen -f -- "$cur")) ;;
  esac
  COMPREPLY+=($(compgen -W "$words" -- "$cur"))
}}
complete -F _kite_launch kite-launch kite
"""


def _zsh() -> str:
    commands = "\n".join(f"    {_zsh_word(f'{name}:{command.says}')}" for name, command in COMMANDS.items())
    own = "\n".join(f"    {_zsh_word(name)}" for name in _KITE)
    cases = []
    for name in COMMANDS:
        options = " ".join(_zsh_word(f"{option}[{text.translate(_BRACKETS)}]") for option, text in _options(name))
        rest = "'*:name:_kite_names'" if name in _NAMED else "'*:file:_files'" if name == "init" else ""
        rest = "'1:shell:(bash zsh fish)'" if name == "completion" else rest
        rest = "'1:action:(install uninstall show)'" if name == "service" else rest
        cases.append(f"    {name}) _arguments {options} {rest} ;;")
    return f"""#compdef kite-launch kite
# zsh completion for kite and kite-launch:  source <(kite-launch completion zsh)
_kite_names() {{
  local -a names
  names=(${{(f)"$(kite-launch completion names 2>/dev/null)"}})
  compadd -a names
}}
_kite_launch() {{
  local -a commands own
  commands=(
{commands}
  )
  own=(
{own}
  )
  [[ ${{words[1]:t}} == kite ]] && commands+=($own)
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{chr(10).join(cases)}
  esac
}}
compdef _kite_launch kite-launch kite
"""


_BRACKETS: Final = str.maketrans({"[": "(", "]": ")"})


def _zsh_word(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish() -> str:
    lines = ["# fish completion for kite and kite-launch:  kite-launch completion fish | source"]
    for program in ("kite-launch", "kite"):
        lines.append(f"complete -c {program} -f")
        for name, command in COMMANDS.items():
            lines.append(f"complete -c {program} -n __fish_use_subcommand -a {name} -d {_fish_word(command.says)}")
            seen = f"-n '__fish_seen_subcommand_from {name}'"
            for option, text in _options(name):
                lines.append(f"complete -c {program} {seen} -l {option[2:]} -d {_fish_word(text)}")
        named = " ".join(_NAMED)
        asked = "-a '(kite-launch completion names 2>/dev/null)'"
        lines.append(f"complete -c {program} -n '__fish_seen_subcommand_from {named}' {asked}")
        lines.append(f"complete -c {program} -n '__fish_seen_subcommand_from init' -F")
        lines.append(f"complete -c {program} -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'")
        lines.append(f"complete -c {program} -n '__fish_seen_subcommand_from service' -a 'install uninstall show'")
    lines += [f"complete -c kite -n __fish_use_subcommand -a {name}" for name in _KITE]
    return "\n".join(lines)


def _fish_word(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
