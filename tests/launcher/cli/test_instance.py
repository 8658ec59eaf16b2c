"""Which instance a command means (S-49) and whose state directory is trusted (S-81)."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from kite_launcher.cli.fail import Failure
from kite_launcher.cli.instance import Asked, Instance, find, judge_state_dir


def make(folder: Path, name: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "" if name is None else f'[instance]\nname = "{name}"\n'
    (folder / "kite.toml").write_text(text, encoding="utf-8")
    return folder / "kite.toml"


def digits(config: Path) -> str:
    return hashlib.sha256(os.fsencode(config.resolve())).hexdigest()[:8]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}


def test_each_place_wins_over_the_next(tmp_path: Path, environ: dict[str, str]) -> None:
    a, b = make(tmp_path / "a"), make(tmp_path / "b")
    sub = tmp_path / "a" / "deep" / "er"
    sub.mkdir(parents=True)
    state_a, state_b = (str(tmp_path / "state" / "kite" / f"{c.parent.name}-{digits(c)}") for c in (a, b))
    assert find(Asked(), environ, str(sub)) == Instance(str(a), state_a)
    assert find(Asked(config=str(b)), environ, str(sub)).state_dir == state_b
    with_env = {**environ, "KITE_STATE_DIR": state_b}
    assert find(Asked(), with_env, str(sub)).state_dir == state_b
    assert find(Asked(state_dir=state_a), with_env, str(sub)).state_dir == state_a
    assert find(Asked(config=str(a)), with_env, "/").state_dir == state_a
    assert find(Asked(), {**environ, "KITE_CONFIG": str(b)}, str(sub)) == Instance(str(b), state_b)
    assert find(Asked(), {**with_env, "KITE_CONFIG": str(a)}, "/").state_dir == state_b


def test_two_folders_of_one_name_never_meet(tmp_path: Path, environ: dict[str, str]) -> None:
    one, two = make(tmp_path / "1" / "lab"), make(tmp_path / "2" / "lab")
    found = {find(Asked(config=str(config)), environ, "/").state_dir for config in (one, two)}
    assert len(found) == 2


def test_a_link_to_the_file_is_the_same_instance(tmp_path: Path, environ: dict[str, str]) -> None:
    config = make(tmp_path / "a", "lab")
    link = tmp_path / "link.toml"
    link.symlink_to(config)
    assert (
        find(Asked(config=str(link)), environ, "/").state_dir == find(Asked(config=str(config)), environ, "/").state_dir
    )


def test_the_name_is_the_files_or_the_folders(tmp_path: Path, environ: dict[str, str]) -> None:
    named = find(Asked(config=str(make(tmp_path / "a", "labor"))), environ, "/").state_dir
    assert Path(named).name.startswith("labor-")
    broken = tmp_path / "b"
    broken.mkdir()
    (broken / "kite.toml").write_text("[instance\nname = 3", encoding="utf-8")
    assert Path(find(Asked(config=str(broken / "kite.toml")), environ, "/").state_dir).name.startswith("b-")


def test_a_file_that_was_renamed_inside_still_finds_what_runs(tmp_path: Path, environ: dict[str, str]) -> None:
    config = make(tmp_path / "a", "old")
    before = find(Asked(config=str(config)), environ, "/").state_dir
    Path(before).mkdir(parents=True)
    make(tmp_path / "a", "new")
    assert find(Asked(config=str(config)), environ, "/").state_dir == before


def test_a_state_directory_remembers_its_file(tmp_path: Path, environ: dict[str, str]) -> None:
    config, other = make(tmp_path / "a"), make(tmp_path / "b")
    state = tmp_path / "s"
    state.mkdir()
    assert find(Asked(state_dir=str(state)), environ, str(other.parent)) == Instance(str(other), str(state))
    (state / "launch.json").write_text(json.dumps({"schema": 1, "config": str(config)}), encoding="utf-8")
    assert find(Asked(state_dir=str(state)), environ, str(other.parent)).config == str(config)
    assert find(Asked(state_dir=str(state), config=str(other)), environ, "/").config == str(other)


def test_a_module_that_calls_kite_means_its_own_instance(tmp_path: Path, environ: dict[str, str]) -> None:
    own = tmp_path / "s" / "modules" / "x"
    own.mkdir(parents=True)
    assert find(Asked(), {**environ, "KITE_STATE_DIR": str(own)}, "/").state_dir == str(own)
    (tmp_path / "s" / "instance.id").write_text("", encoding="utf-8")
    assert find(Asked(), {**environ, "KITE_STATE_DIR": str(own)}, "/").state_dir == str(tmp_path / "s")


def test_without_any_file_it_says_where_it_looked(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(Failure) as caught:
        find(Asked(), environ, str(tmp_path))
    assert caught.value.code == 78
    assert str(tmp_path) in caught.value.message
    assert "KITE_STATE_DIR" in caught.value.message


def test_a_missing_directory_is_no_fault(tmp_path: Path) -> None:
    assert judge_state_dir(str(tmp_path / "no" / "where")) is False


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_may_write_is_refused_and_left_alone(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "s"
    state.mkdir()
    state.chmod(mode)
    with pytest.raises(Failure) as caught:
        judge_state_dir(str(state))
    assert caught.value.code == 77
    assert f"{mode:04o}" in caught.value.message
    assert "chmod" in caught.value.hint
    assert state.stat().st_mode & 0o777 == mode


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("", encoding="utf-8")
    with pytest.raises(Failure) as caught:
        judge_state_dir(str(tmp_path / "s"))
    assert caught.value.code == 77


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_anothers_directory_and_anothers_link_are_refused(tmp_path: Path) -> None:
    state = tmp_path / "s"
    state.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(state)
    assert judge_state_dir(str(link))
    os.chown(link, 65534, 65534, follow_symlinks=False)
    for path in (link, state):
        if path == state:
            os.chown(state, 65534, 65534)
        with pytest.raises(Failure) as caught:
            judge_state_dir(str(path))
        assert caught.value.code == 77
        assert "65534" in caught.value.message
