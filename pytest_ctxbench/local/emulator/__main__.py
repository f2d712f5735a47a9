"""`python -m pytest_ctxbench.local.emulator`: serves until standard input ends, which it does when the parent dies.

The first line of standard output is JSON: {"event": "ready", "url": "http://127.0.0.1:<port>", "pid": <pid>}.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pytest_ctxbench.local.emulator", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS", help="added to every reply")
    args = parser.parse_args()

    import uvicorn

    from .server import DroppableProtocol, create_app

    # asyncio turns Nagle's delay off only where the protocol is named; with it every reply takes 40 ms more.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", args.port))
    except OSError as error:
        print(f"emulator: port {args.port} cannot be used ({error.strerror}); choose another", file=sys.stderr)
        return 1
    config = uvicorn.Config(
        create_app(args.latency),
        http=DroppableProtocol,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        # Longer than any client keeps a connection: a server that hangs up first costs the client a request.
        timeout_keep_alive=600,
        timeout_graceful_shutdown=1,
        backlog=2048,
    )
    server = uvicorn.Server(config)

    def stop_at_the_end_of_input() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        server.should_exit = True

    threading.Thread(target=stop_at_the_end_of_input, daemon=True).start()
    listener.listen(2048)  # so that a connection made right after the ready line waits instead of failing
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    print(json.dumps({"event": "ready", "url": url, "pid": os.getpid()}), flush=True)
    server.run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
