"""Keeps pytest from taking the value of an option of ours for a test path.

pytest looks for its settings file before it knows the options of plugins: in `--ctx-out DIR` it then sees an unknown
option and a path, and when that folder exists it becomes the root, the project's settings are not read and every
folder is collected. (`--ctx-out=DIR` is safe.) Once our options are known, the search is made again without their
values. pytest has no public call for that; what is used here is checked by `tests/test_plugin.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["correct"]


def correct(early_config: Any, args: list[str]) -> None:
    """Find root and settings file again, if a value was taken for a path. Raises `UsageError` when pytest has changed
    so much that this no longer works."""
    known = early_config.known_args_namespace
    if known.inifilename or known.rootdir:
        return  # the user named them
    try:
        from _pytest.config.findpaths import determine_setup

        root, settings_file, settings, ignored = determine_setup(
            inifile=None,
            override_ini=known.override_ini,
            args=known.file_or_dir,
            rootdir_cmd_arg=None,
            invocation_dir=early_config.invocation_params.dir,
        )
        if (root, settings_file) == (early_config.rootpath, early_config.inipath):
            return
        early_config._rootpath = root
        early_config._inipath = settings_file
        early_config._ignored_config_files = ignored
        early_config._inicfg = settings
        early_config._inicache.clear()
        early_config._parser.extra_info.update(rootdir=str(root), inifile=str(settings_file))
        known.confcutdir = str(settings_file.parent if settings_file is not None else root)
        early_config._configure_python_path()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise pytest.UsageError(
            f"pytest took the value of an option for a test path ({type(error).__name__}); "
            "write the options of ctxbench with an equals sign, as --ctx-out=DIR"
        ) from None
    addopts = early_config.getini("addopts")
    if addopts and not hasattr(early_config, "workerinput"):
        args[:] = [*addopts, *args]
        early_config.known_args_namespace = early_config._parser.parse_known_args(args, namespace=known)
