"""The pytest plugin: hooks declare and forward. All work is in `session.BenchSession`, imported when it is used."""

from __future__ import annotations

import pytest

from . import options

__all__: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from . import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    if any(argument.startswith("--ctx-") and "=" not in argument for argument in args):
        from . import rootdir

        rootdir.correct(early_config, args)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ctxbench(task): one item for every planned run of a task of the roster")
    if getattr(config, "workerinput", {}).get("ctxbench") == options.ELSEWHERE:
        from .hosts import count_reruns_here

        count_reruns_here(config)
    if options.is_enabled(config) and not config.option.help:
        from .quick_imports import quick_imports

        with quick_imports():
            from .session import register

            register(config)
