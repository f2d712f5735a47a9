"""The pytest plugin: hooks declare and forward."""
