"""The JSON Schema for editors says what the check says, as far as a schema can."""

from __future__ import annotations

import json
import tomllib

import jsonschema
import pytest

from kite_launcher._contract import CONFIG
from kite_launcher.core.check_rows import Facts
from kite_launcher.core.load import load_text
from kite_launcher.core.schema import json_schema
from kite_launcher.main import run

GOOD = [
    "",
    "[kernel]\nport = 0\nmax_message = '64KiB'\nallow_remote = false\n[timing]\nscale = 0.1\ncall = '1m30s'\n",
    "[kernel]\nport = '${PORT}'\n[logging]\nformat = 'json'\n[notify]\nlimit = '3/10m'\n",
    "[module.x]\ncommand = ['x']\nready = { log = 'a' }\nhealth = false\nlimits = { nofile = 9 }\nenv = { A = 'b' }\n",
    "[group.g]\nstrategy = 'one_for_all'\n[module.x]\nmodule = 'x'\ngroup = 'g'\n[module.x.options]\na = [1]\n",
    "[streams]\nopen = true\n[streams.t]\nring = 9\n[permissions.x]\ncall = ['a']\n[relay]\nlisten = '127.0.0.1:1'\n",
]
BAD = [
    "[kernle]\n",
    "[kernel]\nprot = 1\n",
    "[kernel]\nport = 70000\n",
    "[kernel]\nport = '80a'\n",
    "[kernel]\nmax_message = 1024\n",
    "[kernel]\ntls = { cert = 'a' }\n",
    "[timing]\nscale = true\n",
    "[timing]\ncall = '-1s'\n",
    "[logging]\nformat = 'xml'\n",
    "[module.x]\ncommand = 'x'\n",
    "[module.x]\ncommand = []\n",
    "[module.x]\nmodule = 'x'\nhealth = 15\n",
    "[module.x]\nmodule = 'x'\nready = { log = 'a', tcp = 1 }\n",
    "[module.x]\nmodule = 'x'\nenv = { A = 1 }\n",
    "[streams.ticks]\nrong = 1\n",
    "[notify]\nlimit = '10'\n",
]


def checks(text: str) -> bool:
    known = Facts({"PORT": "1"}, lambda path: "", lambda user: True)
    return load_text(text, path="/lab/kite.toml", facts=known).spec is not None


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("text", GOOD)
def test_what_the_check_accepts_the_schema_accepts(text: str) -> None:
    assert checks(text)
    jsonschema.validate(tomllib.loads(text), json_schema())


@pytest.mark.parametrize("text", BAD)
def test_what_is_wrong_in_form_both_refuse(text: str) -> None:
    assert not checks(text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), json_schema())


def test_every_section_and_key_of_the_contract_is_in_it() -> None:
    properties = json_schema()["properties"]
    for section, rows in CONFIG.items():
        name, _, star = section.partition(".")
        table = properties[name]["additionalProperties"] if star else properties[name]
        assert set(table["properties"]) == set(rows), section


def test_the_command_prints_it_without_any_instance(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(json_schema()))
