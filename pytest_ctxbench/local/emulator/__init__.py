"""A provider emulator: the HTTP APIs of the providers, with scripted policies behind them and strict about requests."""
