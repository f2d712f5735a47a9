"""The scripted policies of the reference agents: small classes, each a generator of moves (see `conversation`)."""
