"""The page of the settings says what the code does, and the environment wins over the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from bursar_server.config import PREFIX, Config, ConfigError, settings
from tests.refresh_configuration import MARK, PAGE, meanings, page


def test_the_page_is_current() -> None:
    """Every setting, word for word. If not: .venv/bin/python tests/refresh_configuration.py."""
    text = PAGE.read_text(encoding="utf-8")
    assert MARK in text
    assert text == page(text)


def test_every_setting_is_explained() -> None:
    """A sentence and the name of its variable are there."""
    text = PAGE.read_text(encoding="utf-8")
    for path, _ in settings():
        assert f"`{PREFIX}{'__'.join(path).upper()}`" in text
    for name, kind in {name: field.annotation for name, field in Config.model_fields.items()}.items():
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            assert set(meanings(kind)) == set(kind.model_fields), name
    assert set(meanings(Config)) == set(Config.model_fields)


def _load(tmp_path: Path, text: str = "", **overrides: object) -> Config:
    (tmp_path / "config.toml").write_text(text)
    return Config.load(tmp_path / "config.toml", **overrides)


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setting by setting, within tables, too; lists are JSON, and an override that is None is none."""
    file = "fit_workers = 3\nqueue_length = 4\n[limits]\ncomponents = 5\ncolumns = 6\n"
    monkeypatch.setenv("BURSAR_SERVER_QUEUE_LENGTH", "7")
    monkeypatch.setenv("BURSAR_SERVER_LIMITS__COLUMNS", "8")
    monkeypatch.setenv("BURSAR_SERVER_CHECKPOINTS__PLACES", '["stdout"]')
    monkeypatch.setenv("BURSAR_SERVER_REFLECTION", "false")
    config = _load(tmp_path, file, fit_workers=9, queue_length=None)
    assert (config.fit_workers, config.queue_length, config.reflection) == (9, 7, False)
    assert (config.limits.components, config.limits.columns) == (5, 8)
    assert config.checkpoints.places == ("stdout",)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("BURSAR_SERVER_FIT_WORKERS", "0", "environment: fit_workers"),
        ("BURSAR_SERVER_FIT_WORKERS", "many", "environment: fit_workers"),
        ("BURSAR_SERVER_LIMITS__COLUMNS", "nan", "environment: limits.columns"),
        ("BURSAR_SERVER_CHECKPOINTS__PLACES", "stdout", "JSON"),
        ("BURSAR_SERVER_LIMIT__COLUMNS", "3", "BURSAR_SERVER_LIMIT__COLUMNS is no setting"),
        ("BURSAR_SERVER_BUDGET", "3", "BURSAR_SERVER_BUDGET is no setting"),
    ],
)
def test_a_variable_that_is_wrong_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    """One with our prefix that is no setting would otherwise be a limit that somebody believes to be set."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=said):
        _load(tmp_path)


def test_a_message_never_quotes_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a secret that was put into the wrong place."""
    monkeypatch.setenv("BURSAR_SERVER_FIT_WORKERS", "SECRET-23")
    monkeypatch.setenv("BURSAR_SERVER_LIMITS", '{"columns": "SECRET-24"}')
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, 'queue_length = "SECRET-25"')
    assert "SECRET" not in str(caught.value)


def test_variables_of_others_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the client's programs have no such prefix, and a setting's bare name is nobody's."""
    for name in ("ADDRESS", "BURSAR_ADDRESS", "FIT_WORKERS", "BURSAR_STATE"):
        monkeypatch.setenv(name, "9")
    assert _load(tmp_path) == Config()


def test_two_settings_that_would_throw_fits_away_are_refused_together(tmp_path: Path) -> None:
    """Each alone is fine."""
    assert _load(tmp_path, 'unfinished_fits = "abandon"').unfinished_fits == "abandon"
    with pytest.raises(ConfigError, match="throw away"):
        _load(tmp_path, 'unfinished_fits = "abandon"\nrecovery = "lost"')
