"""The root of the benchmark project. Its place makes this folder pytest's root; what the plugin does is in
`pytest_ctxbench`, its options are `--ctx-...`, its settings are in `pyproject.toml`.

A hook of your own goes here, for example to see every finished run:

    def pytest_ctxbench_record(record, config):
        print(record["model"], record["task"], record["condition"], record["cost_usd"])
"""
